"""Export results in other tools' forms: Spec-Bench's answer files, vLLM's metric names."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.bench.measure.conversations import number_questions
from jaxspec.bench.measure.decodes import Run
from jaxspec.io.text.prompt_files import ALL_DOMAINS, LabelledPrompt

_COUNTERS = {
    "num_drafts": "Rounds of decoding with a drafter.",
    "num_draft_tokens": "Drafted nodes that the target verified.",
    "num_accepted_tokens": "Drafted nodes that it accepted.",
    "num_accepted_tokens_per_pos": "Those by depth, from 0.",
}
_PREFIX = "vllm:spec_decode_"


def make_spec_bench(
    prompts: Sequence[LabelledPrompt],
    runs: Sequence[Run],
    model: str,
    decode: Callable[[Sequence[int]], str],
) -> dict[str, list[dict[str, Any]]]:
    """Make answers in the form that Spec-Bench's scripts (`evaluation/speed.py`) read.

    A record has one choice. For each turn it holds the text (`turns`), the rounds
    (`decoding_steps`), the tokens including the prefill's (`new_tokens`) and the seconds including
    the prefill (`wall_time`, the median of the repeats). `accept_lengths` holds the tokens of each
    round of all turns, the bonus included. We add `identical_to_ar`, which Spec-Bench lacks: it
    says whether every repeat of every turn gave the tokens of `ar`.

    Args:
      prompts: prompts as asked, each question's turns in order.
      runs: runs of these prompts, including those of `ar`.
      model: name of the model; `model_id` combines it with the method's name.
      decode: token ids -> text.

    Returns:
      {method: a record per question}.
    """
    asked, grouped = number_questions(prompts), defaultdict(list)
    for run in runs:
        grouped[run.method, run.prompt].append(run)
    found = {}
    for method in dict.fromkeys(run.method for run in runs):
        records = []
        for number, question in enumerate(dict.fromkeys(asked)):
            turns = [i for i, other in enumerate(asked) if other == question]
            groups = [grouped[method, i] for i in turns]
            first = prompts[turns[0]]
            name = {
                "question_id": number if first.question is None else first.question,
                "category": first.domain,
                "answer_id": uuid.uuid4().hex,
                "model_id": f"{model}-{method}",
            }
            same = all(
                run.tokens == grouped["ar", i][0].tokens
                for i in turns
                for run in grouped[method, i]
            )
            records.append(
                name
                | {
                    "choices": [_choice(groups, decode)],
                    "identical_to_ar": same,
                    "tstamp": time.time(),
                }
            )
        found[method] = records
    return found


def _choice(
    groups: Sequence[Sequence[Run]], decode: Callable[[Sequence[int]], str]
) -> dict[str, Any]:
    first = [group[0] for group in groups]
    return {
        "index": 0,
        "turns": [decode(run.tokens) for run in first],
        "decoding_steps": [run.rounds for run in first],
        "new_tokens": [len(run.tokens) for run in first],
        "wall_time": [
            float(np.median([run.prefill_seconds + run.decode_seconds for run in group]))
            for group in groups
        ],
        "accept_lengths": [tokens for run in first for tokens in run.round_tokens],
    }


def write_spec_bench(path: Path, answers: dict[str, list[dict[str, Any]]]) -> list[Path]:
    """Write one file per method: answers.jsonl becomes answers-jetspec-expand.jsonl and so on."""
    written = []
    for method, records in answers.items():
        written.append(path.with_name(f"{path.stem}-{file_name(method)}{path.suffix}"))
        written[-1].write_text(
            "".join(json.dumps(record) + "\n" for record in records), encoding="utf-8"
        )
    return written


def file_name(method: str) -> str:
    """Replace the characters of a method's name that a file name cannot have."""
    return re.sub(r"[^\w.@+-]", "_", method)


def name_as_vllm(records: Sequence[dict[str, Any]], model: str) -> list[dict[str, Any]]:
    """Rename figures to the names in vLLM's counters, its logs and `vllm bench serve`.

    A draft is a round. Unlike vLLM, we also count rounds in which a policy or prompt lookup drafted
    nothing. A draft's tokens are all verified nodes, and an accepted token's position is its depth,
    counted from 0 in the counter. If a stop cuts a round, only emitted tokens count; vLLM also
    counts accepted tokens beyond the stop.

    Returns:
      A record per method, domain (including `all`) and temperature: counters that start with
      `vllm:`; rates as shares of 1; `ttft_ms`, the median prefill; `tpot_ms`, milliseconds per
      token after the prefill; `output_throughput`, tokens per second including the prefill.
    """
    return [_vllm(record, model) for record in records]


def _vllm(record: dict[str, Any], model: str) -> dict[str, Any]:
    # Entry p counts rounds that committed more than p + 1 tokens, so accepted more than p drafted
    # ones.
    reached = (
        np.array(record["accept_hist"])[::-1].cumsum()[::-1][2:].tolist()
        if record["drafted"]
        else []
    )
    speed = record["tokens_per_second"]
    return {
        "model_name": model,
        **{key: record[key] for key in ("method", "domain", "temperature", "prompts")},
        f"{_PREFIX}num_drafts": record["rounds"] if record["drafted"] else 0,
        f"{_PREFIX}num_draft_tokens": record["drafted"],
        f"{_PREFIX}num_accepted_tokens": sum(reached),
        f"{_PREFIX}num_accepted_tokens_per_pos": reached,
        "mean_acceptance_length": record["mean_acceptance_length"],
        "acceptance_rate_per_pos": [count / record["rounds"] for count in reached],
        "draft_acceptance_rate": sum(reached) / record["drafted"] if record["drafted"] else None,
        "ttft_ms": record["ms_prefill"],
        "tpot_ms": 1e3 / speed if speed else None,
        "output_throughput": record["tokens_per_second_with_prefill"],
        "identical_to_ar": record["identical_to_ar"],
    }


def format_prometheus(records: Sequence[dict[str, Any]]) -> str:
    """Format the counters of `name_as_vllm` for Prometheus (text format 0.0.4), by method, domain
    and temperature.

    Domain `all` is left out because it is the sum of the others.
    """
    lines = []
    for name, described in _COUNTERS.items():
        full = f"{_PREFIX}{name}"
        lines += [f"# HELP {full}_total {described}", f"# TYPE {full}_total counter"]
        for record in records:
            if record["domain"] == ALL_DOMAINS:
                continue
            known = {key: record[key] for key in ("model_name", "method", "domain", "temperature")}
            per_position = isinstance(record[full], list)
            for position, value in enumerate(record[full] if per_position else [record[full]]):
                labels = known | ({"position": position} if per_position else {})
                written = ",".join(
                    f"{key}={json.dumps(str(label), ensure_ascii=False)}"
                    for key, label in labels.items()
                )
                lines.append(f"{full}_total{{{written}}} {value}")
    return "\n".join(lines) + "\n"


def write_vllm(path: Path, records: Sequence[dict[str, Any]], model: str) -> None:
    """Write a benchmark's records under vLLM's names: as Prometheus text to a file that ends in
    .prom, otherwise as JSON.
    """
    found = name_as_vllm(records, model)
    path.write_text(
        format_prometheus(found) if path.suffix == ".prom" else json.dumps(found, indent=1) + "\n",
        encoding="utf-8",
    )
