"""Medusa in the decode loop: the authors' greedy runs, token for token and round for round."""

import json
from pathlib import Path

import pytest

import jaxspec
from jaxspec.builders import static

GOLDEN = Path(__file__).parents[2] / "golden"
RECORDS = [
    record
    for record in json.loads((GOLDEN / "medusa" / "trace.json").read_text())
    if record["args"]["temperature"] == 0
]


@pytest.fixture(scope="module")
def params():
    return jaxspec.load(
        GOLDEN / "tiny_llama", drafter={"medusa": GOLDEN / "medusa" / "draft"}, dtype="float32"
    )


def test_greedy_traces(params):
    paths = json.loads((GOLDEN / "medusa" / "draft" / "config.json").read_text())["medusa_choices"]
    options = dict(
        method="medusa",
        builder=static(paths),
        trace=True,
        max_new_tokens=len(RECORDS[0]["output_ids"]) + 1,
    )
    for record, out in zip(
        RECORDS,
        jaxspec.decode(params, [record["prompt"] for record in RECORDS], **options),
        strict=True,
    ):
        assert (
            out.tokens[: len(record["output_ids"])]
            == record["output_ids"]
            == record["greedy_reference"]
        )
        for ours, theirs in zip(out.rounds, record["iterations"], strict=False):
            assert len(ours.path) == theirs["accept_length"] + 1
            assert sorted(ours.tree.token) == sorted(theirs["tree_tokens"])
        assert len(out.rounds) >= len(record["iterations"])
