"""The drafter that is recorded as best for a model is its default."""

import json

import pytest

import jaxspec
from jaxspec.io.hub import ZOO


@pytest.fixture
def folder(tmp_path):
    """A copy of mini with two of its drafters."""
    for file in (ZOO / "mini").iterdir():
        if file.is_file():
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "drafters").mkdir()
    for name in ("jetspec", "medusa"):
        (tmp_path / "drafters" / name).symlink_to(ZOO / "mini" / "drafters" / name)
    return tmp_path


def record(folder, content):
    (folder / "drafters" / "best.json").write_text(json.dumps(content))


def names(params):
    return [name for name, _ in params.spec.drafters]


def test_without_a_record_kinds_have_an_order(folder):
    assert names(jaxspec.load(folder)) == ["jetspec", "medusa"]


def test_the_record_comes_first_and_is_saved_with_the_model(folder, tmp_path_factory):
    record(folder, {"order": ["medusa", "gone"], "measured": "by hand"})
    params = jaxspec.load(folder)
    assert names(params) == ["medusa", "jetspec"]
    assert params.spec.default_drafter == "medusa"
    saved = tmp_path_factory.mktemp("saved")
    jaxspec.save(params, saved)
    assert names(jaxspec.load(saved)) == ["medusa", "jetspec"]


@pytest.mark.parametrize(
    "content", [{}, {"order": "medusa"}, {"order": [1]}, {"first": ["medusa"]}]
)
def test_a_damaged_record_says_what_to_do(folder, content):
    record(folder, content)
    with pytest.raises(ValueError, match=r"best\.json should hold .* mend it, or delete it"):
        jaxspec.load(folder)
