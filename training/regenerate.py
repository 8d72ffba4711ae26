"""Let a target answer prompts: its own text is the best training data for its drafters.

    jaxspec regenerate --target mini --prompts corpus.jsonl.gz \\
        --out regenerated.jsonl --limit 2000 \\
        --domains math 0.4 code 0.3 prose 0.3 --temperatures 0 0 0.7 1

The output is JSON Lines: the settings, then one record per prompt with text, tokens and
`prompt_length`, which `training.data.samples` reads. Run the same command again to continue after
an interruption, or with a larger `--limit` to add prompts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.core.params import Params
from jaxspec.io.text.json_records import SETTINGS

from .data.chat import ChatFormat, make_format
from .data.documents import DataError
from .data.prompts import PromptToAnswer, find_unfinished, make_prompts
from .data.samples import read_records
from .run.command import one_line_errors


@dataclasses.dataclass
class RegenerateOptions:
    """Options of the regeneration.

    Attributes:
      target: the model that answers: `mini`, a directory or a hub id.
      prompts: file of prompts, conversations or texts in the forms of `training.data.samples`, see
        `training.data.prompts.make_prompts`.
      out: .jsonl file to write or to continue.
      temperature: sampling temperature; 0 decodes greedily.
      temperatures: several temperatures, cycled over the prompts, instead of `temperature`.
      top_k: sample among the k most probable tokens.
      top_p: sample among the most probable tokens of this total mass.
      max_new_tokens: maximum tokens of an answer.
      seed: seed of prompts and samples.
      limit: maximum number of prompts; None takes one per record.
      domains: share of `limit` of each domain; None gives all domains equal shares.
      prompt_tokens: shortest and longest prompt cut from plain text.
      max_prompt_tokens: skip longer prompts; None allows what the target has room for.
      chat_template: file with a Jinja template, instead of the tokenizer's own.
      enable_thinking: for templates that know it (Qwen3).
      raw_prompts: treat prompts as plain text, not as a user's message.
      roles: see `training.data.pipeline.DataOptions`.
      batch: number of prompts answered together.
      drafter: `ar`, or one that ships with the target, a directory or a hub id; it changes the
        speed and not the text.
      budget: rows of a drafter's tree.
      dtype: dtype of the target's weights; None picks the one that suits the device.
    """

    target: str
    prompts: Path
    out: Path
    temperature: float = 0.0
    temperatures: tuple[float, ...] = ()
    top_k: int | None = None
    top_p: float | None = None
    max_new_tokens: int = 192
    seed: int = 0
    limit: int | None = None
    domains: dict[str, float] | None = None
    prompt_tokens: tuple[int, int] = (32, 112)
    max_prompt_tokens: int | None = None
    chat_template: Path | None = None
    enable_thinking: bool | None = None
    raw_prompts: bool = False
    roles: dict[str, str] | None = None
    batch: int = 64
    drafter: str = "ar"
    budget: int = 8
    dtype: str | None = None


def regenerate(options: RegenerateOptions) -> int:
    """Answer the prompts that `options.out` does not have yet.

    Returns:
      The number of prompts answered.

    Raises:
      DataError: the prompts are unusable, or `out` was made with other settings (the message names
        the first difference).
      ValueError, FileNotFoundError: see `jaxspec.load` and `jaxspec.decode`.
    """
    if options.batch < 1:
        raise DataError(f"batch is {options.batch}: give at least 1 prompt")
    params = _load(options)
    chat = make_format(
        params.spec.tokenizer, options.chat_template, options.enable_thinking, options.raw_prompts
    )
    if chat.tokenizer is None:
        raise DataError(
            f"{options.target} has no tokenizer to read text with: choose another target"
        )
    longest = params.spec.target.max_positions - options.max_new_tokens
    prompts = make_prompts(
        read_records(options.prompts, options.roles),
        chat,
        longest=min(longest, options.max_prompt_tokens or longest),
        limit=options.limit,
        domains=options.domains,
        prompt_tokens=options.prompt_tokens,
        temperatures=_temperatures(options),
        seed=options.seed,
    )
    settings = describe_settings(options, params, chat)
    done = read_finished(options.out, settings)
    batches = find_unfinished(prompts, done, options.batch, options.seed)
    left = sum(prompt.id not in done for prompt in prompts)
    with (
        open(options.out, "a", encoding="utf-8") as file,
        _progress(len(prompts), len(prompts) - left) as progress,
    ):
        if not file.tell():
            _append(file, [{SETTINGS: settings}])
        began, tokens = time.monotonic(), 0
        for batch in batches:
            records = [
                record
                for record in answer_batch(params, batch, options)
                if record["id"] not in done
            ]
            _append(file, records)
            tokens += sum(len(record["tokens"]) - record["prompt_length"] for record in records)
            progress.set_postfix_str(
                f"{tokens / (time.monotonic() - began):.0f} tokens/s", refresh=False
            )
            progress.update(len(records))
    return left


def describe_settings(options: RegenerateOptions, params: Params, chat: ChatFormat) -> dict:
    """Describe what the text depends on, as JSON: settings that must not change within a file."""
    try:
        version = importlib.metadata.version("jax-speculative")
    except importlib.metadata.PackageNotFoundError:
        version = None  # run from a source tree
    return {
        "target": options.target,
        "dtype": str(params.target["params"]["embedding"].dtype),
        "prompts": options.prompts.name,
        "prompts_sha256": hashlib.sha256(options.prompts.read_bytes()).hexdigest(),
        "prompt_tokens": list(options.prompt_tokens),
        "max_prompt_tokens": options.max_prompt_tokens,
        "temperatures": list(_temperatures(options)),
        "top_k": options.top_k,
        "top_p": options.top_p,
        "max_new_tokens": options.max_new_tokens,
        "seed": options.seed,
        "chat_template": chat.fingerprint,
        "enable_thinking": options.enable_thinking,
        "raw_prompts": options.raw_prompts,
        "roles": options.roles,
        "jaxspec": version,
    }


def read_finished(path: Path, settings: dict) -> set[str]:
    """Read the ids of finished prompts from `path`; cut an incomplete last line off the file.

    Raises:
      DataError: it was made with other settings, or by another command.
    """
    if not path.exists():
        if not path.parent.is_dir():
            raise DataError(f"no folder {path.parent} to write {path.name} to: create it first")
        return set()
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    lines = content[:whole].splitlines()
    if not lines and not content.startswith(b"{") and content:
        raise DataError(f"{path} was not written by `jaxspec regenerate`: choose another --out")
    try:
        found = [json.loads(line) for line in lines]
        first = found[0][SETTINGS] if found else settings
        done = {record["id"] for record in found[1:]}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} was not written by `jaxspec regenerate`, or is damaged ({error!r}): "
            "choose another --out"
        ) from None
    for name in [*settings, *first]:
        if first.get(name) != settings.get(name):
            raise DataError(
                f"{path} was made with {name}={first.get(name)!r}, not {settings.get(name)!r}: "
                "use the same options or another --out"
            )
    os.truncate(path, whole)
    return done


def answer_batch(
    params: Params, batch: Sequence[PromptToAnswer], options: RegenerateOptions
) -> list[dict]:
    """Answer a batch; a batch that is not full is filled up, so that nothing new is compiled."""
    # Append repetitions: a prompt's noise depends on how often it occurred before.
    ids = [prompt.ids for prompt in batch] + [batch[0].ids] * (options.batch - len(batch))
    spec, given = params.spec, options.drafter
    drafter = given if given in spec.drafter_names else spec.default_drafter
    outputs = jaxspec.decode(
        params,
        ids,
        drafter=drafter,
        max_new_tokens=options.max_new_tokens,
        temperature=batch[0].temperature,
        **group_options(
            top_k=options.top_k,
            top_p=options.top_p,
            **{} if options.drafter == "ar" else {"budget": options.budget},
        ),
        seed=options.seed,
    )
    return [_record(prompt, output) for prompt, output in zip(batch, outputs, strict=False)]


def _record(prompt: PromptToAnswer, output) -> dict:
    domain = {} if prompt.domain is None else {"domain": prompt.domain}
    return {
        "id": prompt.id,
        **domain,
        "prompt": prompt.content,
        "response": output.text,
        "tokens": [*prompt.ids, *output.tokens],
        "prompt_length": len(prompt.ids),
        "temperature": prompt.temperature,
        "finish_reason": output.stats.finish_reason,
    }


def _append(file, records: list[dict]) -> None:
    try:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise DataError(
            f"{file.name} cannot be written ({error.strerror}): "
            "fix that and run the same command again"
        ) from None


def _temperatures(options: RegenerateOptions) -> tuple[float, ...]:
    return tuple(map(float, options.temperatures or (options.temperature,)))


def _load(options: RegenerateOptions) -> Params:
    drafter = {} if options.drafter == "ar" else options.drafter
    return jaxspec.load(options.target, drafter=drafter, dtype=options.dtype)


def _progress(total: int, done: int) -> tqdm:
    return tqdm(total=total, initial=done, desc="regenerate", unit="prompt")


def run(arguments: list[str]) -> None:
    """Do what a command line asks for."""
    import tyro

    regenerate(tyro.cli(RegenerateOptions, prog="jaxspec regenerate", args=arguments))


if __name__ == "__main__":
    with one_line_errors():
        run(sys.argv[1:])
