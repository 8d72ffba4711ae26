"""The packages of a wheel; pyproject.toml has the rest.

The folder `training/` is installed as `jaxspec.training`, because a package called `training` would
meet the user's own folder of that name. jaxspec/training/__init__.py gives it that name in a clone.
"""

from setuptools import find_packages, setup

library = find_packages(include=["jaxspec*", "pallas_kernels*"], exclude=["jaxspec.training"])
training = [f"jaxspec.{name}" for name in find_packages(include=["training*"])]
setup(packages=[*library, *training], package_dir={"jaxspec.training": "training"})
