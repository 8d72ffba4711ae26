import json

import pytest

from jaxspec.io.weights.provenance import read_training_cost, write_training_cost


def test_cost_stands_among_the_own_settings(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architectures": ["X"], "jaxspec": {"depth": 3}}))
    assert read_training_cost(tmp_path) is None
    write_training_cost(tmp_path, {"steps": 5, "minutes": 1.5})
    assert json.loads(config.read_text()) == {
        "architectures": ["X"],
        "jaxspec": {"depth": 3, "training": {"steps": 5, "minutes": 1.5}},
    }
    assert read_training_cost(tmp_path) == {"steps": 5, "minutes": 1.5}


@pytest.mark.parametrize("own", [None, "x", {"training": "long"}, {"training": {"steps": "many"}}])
def test_other_contents_are_no_cost(tmp_path, own):
    (tmp_path / "config.json").write_text(json.dumps({"jaxspec": own}))
    assert read_training_cost(tmp_path) is None


def test_wrong_keys(tmp_path):
    with pytest.raises(
        ValueError,
        match="unknown part of a training cost 'hours': give steps, rows, tokens, minutes",
    ):
        write_training_cost(tmp_path, {"hours": 1})
