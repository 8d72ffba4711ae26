"""The runner of studies: it lists them, finds each one, and says what a mistake is."""

import dataclasses
import importlib
import typing

import pytest

from benchmarks.__main__ import STUDIES, main, make_parser


def test_help_lists_all_studies(capsys):
    assert main([]) == main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed and one.summary in printed for name, one in STUDIES.items())


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_there_and_its_example_is_understood(name):
    study = importlib.import_module(STUDIES[name].module)
    if not hasattr(study, "add_options"):
        assert dataclasses.is_dataclass(typing.get_type_hints(study.main)["options"])
    else:
        assert callable(study.run)
        example = study.EXAMPLE.replace("FILE", __file__).replace("heldout.jsonl.gz", __file__)
        make_parser(name, study).parse_args(example.split())


def test_a_typo_gets_the_nearest_name(capsys):
    assert main(["pause"]) == 2
    assert "'pause' is no study: did you mean 'pauses'?" in capsys.readouterr().err


def test_a_study_of_training_reads_its_own_options(capsys):
    assert (
        main(
            [
                "ltd-compare",
                "--record",
                "none.npz",
                "--times",
                "t",
                "--tuned-on",
                "u",
                "--ways",
                "a=b",
            ]
        )
        == 2
    )
    assert "none.npz" in capsys.readouterr().err
