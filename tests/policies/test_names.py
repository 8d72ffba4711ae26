"""Names of policies: importing the package registers all of them."""

import re
from pathlib import Path

import jaxspec.policies


def test_the_package_imports_every_module_that_registers_a_name():
    package = Path(jaxspec.policies.__file__).parent
    imported = (package / "__init__.py").read_text()
    registering = [
        ".".join(("jaxspec.policies", *path.relative_to(package).with_suffix("").parts))
        for path in package.rglob("*.py")
        if re.search(r"^ *register\(", path.read_text(), re.MULTILINE)
    ]
    assert len(registering) > 3
    assert [name for name in registering if f"from {name} import" not in imported] == []
