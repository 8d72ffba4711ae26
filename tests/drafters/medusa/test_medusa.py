"""Medusa in the decode loop: the authors' greedy runs, token for token and round for round."""

import pytest
from golden_data import golden, records, target_of

import jaxspec
from jaxspec.builders import static
from jaxspec.call.options import group_options

RECORDS = [
    record for record in records("medusa", "trace.json") if record["args"]["temperature"] == 0
]


@pytest.fixture(scope="module")
def params():
    return jaxspec.load(
        target_of("medusa"), drafter={"medusa": golden("medusa", "draft")}, dtype="float32"
    )


def test_greedy_traces(params):
    paths = records("medusa", "draft", "config.json")["medusa_choices"]
    options = dict(
        drafter="medusa",
        builder=static(paths),
        trace=True,
        max_new_tokens=max(len(record["output_ids"]) for record in RECORDS) + 1,
    )
    for record, out in zip(
        RECORDS,
        jaxspec.decode(
            params, [record["prompt"] for record in RECORDS], **group_options(**options)
        ),
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
