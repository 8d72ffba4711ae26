"""`jaxspec bench peers`: compare with transformers on PyTorch, and with llama.cpp."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxspec.cli.bench import prompts as bench_prompts
from jaxspec.cli.shared import asking, options, values

if TYPE_CHECKING:
    from jaxspec.core.params import Params
    from jaxspec.io.text.prompt_files import LabelledPrompt


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser of `bench`."""
    parser = options.add_parser(
        commands,
        "bench peers",
        run,
        "compare with transformers on PyTorch, and with llama.cpp for GGUF files: same prompts "
        "and threads",
        "jaxspec bench peers --limit 1 --max-new-tokens 64 --repeats 3",
    )
    add = parser.add_argument
    options.add_name(parser)
    options.add_drafter(parser)
    add(
        "--methods",
        help="our methods, as for bench (default: a tree of the block drafter, "
        "chains of draft models, prompt lookup)",
    )
    bench_prompts.add_prompts(parser)
    options.add_template(parser)
    options.add_repeats(parser, 5, "number of times that each peer decodes each prompt")
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure both sides in turn and print a table."""
    import jaxspec
    from jaxspec.bench.measure.methods import parse_methods
    from jaxspec.bench.peers import race_peers as peers
    from jaxspec.bench.peers.peer_tables import render_peers
    from jaxspec.call.arguments import check_template
    from jaxspec.io.text.prompt_files import uses_template
    from jaxspec.zoo.drafters import drafter_directories
    from jaxspec.zoo.places import resolve_model

    if arguments.repeats < 1:
        raise ValueError(f"--repeats is {arguments.repeats}: give at least 1")
    values.check_folders(arguments, "json")
    drafter = values.read_drafters(arguments)
    params = jaxspec.load(arguments.model, drafter=drafter, dtype="float32")
    spec = params.spec
    methods = parse_methods(arguments.methods or peers.default_methods(spec), budget=32, spec=spec)
    tokenizer, template = params.tokenizer, arguments.template
    check_template(template, tokenizer)
    prompts = _render(bench_prompts.read_prompts(arguments, tokenizer), params, template)
    report = peers.compare_peers(
        params,
        prompts,
        methods,
        resolve_model(arguments.model),
        peers.find_assistants(spec, drafter_directories(arguments.model, drafter=drafter)),
        max_new_tokens=arguments.max_new_tokens,
        repeats=arguments.repeats,
        progress=values.show_progress,
    )
    report["settings"] = {
        "model": Path(arguments.model).name,
        "chat": uses_template(tokenizer, asking.read_chat(arguments)),
        "template": template,
        "methods": {method.name: method.options for method in methods},
    }
    values.save_json(arguments.json, report)
    print(render_peers(report["results"], report["overhead"]))
    if report["note"]:
        print(report["note"])
    return 0


def _render(
    prompts: list[LabelledPrompt], params: Params, template: dict[str, Any] | None
) -> list[LabelledPrompt]:
    """Render prompts with variables of the chat template: all peers are given token ids."""
    from jaxspec.call.text.token_ids import to_ids

    if not template:
        return prompts
    given = {"tokenizer": params.tokenizer, "config": params.spec.target, "template": template}
    return [dataclasses.replace(one, content=to_ids(one.content, **given)) for one in prompts]
