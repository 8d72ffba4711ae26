"""The `jaxspec` command: generate, bench, demo.

`tree` is in `jaxspec.cli.tree`, `inspect`, `convert` and `doctor` are in `jaxspec.cli.tools`,
subcommands of bench in `jaxspec.cli.bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from jaxspec.cli import bench as cli_bench
from jaxspec.cli import bench_report as cli_report
from jaxspec.cli import calibrate as cli_policies
from jaxspec.cli import options as cli_options
from jaxspec.cli import tools as cli_tools
from jaxspec.cli import tree as cli_draw
from jaxspec.core import distribution as _distribution

USER_ERROR = 2


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit status is 0, 1 (the demo's texts differ, the doctor warns) or
    2 (the user's mistake).
    """
    # transformers, imported for tokenizers alone, would say on the terminal that it found no
    # PyTorch.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    arguments = _parser().parse_args(argv)
    try:
        _distribution.check()
        return arguments.run(arguments)
    except (ValueError, OSError, ImportError) as error:
        if isinstance(
            error, BrokenPipeError
        ):  # the reader of a pipe has left; nothing more can be written
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"jaxspec: error: {_one_line(error)}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        return 130


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxspec", description="Lossless tree speculative decoding in JAX."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    generate = commands.add_parser(
        "generate", help="complete a prompt; the text streams to the terminal"
    )
    generate.set_defaults(run=_generate)
    cli_options.add_model(generate)
    prompt = generate.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", help="default: --prompt-file, else standard input")
    prompt.add_argument("--prompt-file", type=Path, help="file that holds the prompt")
    cli_options.add_prompt_form(generate)
    cli_options.add_method(generate)
    generate.add_argument(
        "--show",
        action="store_true",
        help="print at the end, drafted tokens told from the target's own",
    )
    generate.add_argument(
        "--json", action="store_true", help="print text, tokens, stats and timings as JSON instead"
    )
    cli_options.add_decode(generate)
    cli_policies.add_policy(generate)

    bench = commands.add_parser("bench", help="measure methods on a file of prompts")
    bench.set_defaults(run=_bench)
    cli_options.add_model(bench)
    bench.add_argument(
        "--methods",
        default="ar,dflash-chain,dflash-ddtree,jetspec-tree",
        help="comma-separated: ar, all (every drafter with the builders that suit it), or "
        "<drafter>-<builder>[+score][@budget][/setting...] with builder chain, ddtree, tree, beam, static, dynamic or rank, "
        "score entropy or hybrid0.1, setting d6 (depth), b8 (block size) or one of the builder's, such as w4 (width) or "
        "fanout=top2gap, as in eagle3-dynamic@12/d6/w4; "
        "last /best, /bastion-paper or /bastion-code lets a policy choose the rows, up to the budget "
        "(default: %(default)s)",
    )
    bench.add_argument(
        "--prompts",
        type=Path,
        help="required: .jsonl or .jsonl.gz; see jaxspec.bench.measure.prompt_files",
    )
    bench.add_argument(
        "--limit", type=int, default=30, help="prompts per domain (default: %(default)s)"
    )
    bench.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="decodes of each prompt by each method (default: %(default)s)",
    )
    bench.add_argument(
        "--chat",
        nargs="?",
        const="on",
        choices=("on", "off"),
        help="put prompts into the model's chat template (default: on for HumanEval, GSM8K and turns where there is one)",
    )
    bench.add_argument(
        "--coupled",
        choices=("on", "off", "both"),
        default="on",
        help="draft under the target's noise",
    )
    bench.add_argument(
        "--no-profile", action="store_true", help="skip the split of a round into phases"
    )
    cli_report.add_outputs(bench)
    cli_options.add_decode(bench, max_new_tokens=128, several=True)
    cli_bench.add_commands(bench)

    demo = commands.add_parser(
        "demo", help="three held-out prompts, plainly and with the JetSpec tree"
    )
    demo.set_defaults(run=_demo)
    demo.add_argument("--max-new-tokens", type=int, default=128, help="(default: %(default)s)")
    cli_draw.add_commands(commands)
    cli_policies.add_commands(commands)
    cli_tools.add_commands(commands)
    return parser


def _generate(arguments: argparse.Namespace) -> int:
    import jaxspec

    prompt = _prompt(arguments)
    params = cli_options.load(arguments)
    options = cli_options.method_options(arguments)
    options["policy"] = cli_policies.policy_of(params, arguments.policy, options)
    if arguments.json:
        out = jaxspec.decode(params, prompt, **options)
        print(json.dumps({"text": out.text, "tokens": out.tokens, "stats": out.stats.to_dict()}))
        return 0
    if arguments.show:
        cli_draw.show_text(params, prompt, options)
        return 0
    for piece in jaxspec.stream(params, prompt, **options):
        print(
            piece if isinstance(piece, str) else "".join(f"{token} " for token in piece),
            end="",
            flush=True,
        )
    print()
    return 0


def _prompt(arguments: argparse.Namespace):
    if arguments.prompt is not None:
        text = arguments.prompt
    elif arguments.prompt_file is not None:
        text = arguments.prompt_file.read_text(encoding="utf-8")
    elif sys.stdin.isatty():
        raise ValueError("no prompt: give --prompt, --prompt-file or text on standard input")
    else:
        text = sys.stdin.read()
    if arguments.prompt is None:
        text = text.removesuffix("\n")
    return cli_options.formed(text, arguments)


def _bench(arguments: argparse.Namespace) -> int:
    from jaxspec.bench.benchmark import benchmark
    from jaxspec.bench.measure.methods import parse_methods
    from jaxspec.bench.measure.prompt_files import read_prompts, uses_template
    from jaxspec.bench.report.speed_table import tabulate_speeds
    from jaxspec.io.tokenizer import load_tokenizer
    from jaxspec.zoo.checkpoint import training_costs

    if arguments.prompts is None:
        raise ValueError(
            "bench needs prompts: give --prompts FILE, or a subcommand such as `jaxspec bench latency`"
        )
    how = {"budget": arguments.budget, "coupled": arguments.coupled}
    parse_methods(arguments.methods, **how)  # mistakes are told before a large model is read
    if arguments.coupled == "both" and not any(arguments.temperature):
        raise ValueError(
            "--coupled both compares drafting at a temperature above 0: give --temperature"
        )
    cli_report.check_outputs(arguments)
    params = cli_options.load(arguments)
    methods = parse_methods(arguments.methods, **how, spec=params.spec)
    tokenizer = load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
    chat = None if arguments.chat is None else arguments.chat == "on"
    prompts = read_prompts(arguments.prompts, tokenizer, limit=arguments.limit, chat=chat)
    options, kept = cli_options.decode_options(arguments), cli_report.Kept()
    report = benchmark(
        params,
        prompts,
        methods,
        repeats=arguments.repeats,
        options={name: value for name, value in options.items() if name != "temperature"},
        temperatures=arguments.temperature,
        costs=training_costs(arguments.model, drafter=cli_options.drafters(arguments)),
        with_profile=not arguments.no_profile,
        progress=cli_options.progress,
        keep=kept,
    )
    # Files go by name: a report may be published, and where they lay says nothing about the
    # figures.
    given = {
        key: value
        for key, value in vars(arguments).items()
        if key not in ("run", "json", "spec_bench", "vllm", "report")
    }
    settings = {
        key: value.name if isinstance(value, Path) else value for key, value in given.items()
    }
    settings["chat"] = uses_template(tokenizer, chat)
    report["settings"] = settings | {"methods": {method.name: method.options for method in methods}}
    cli_report.write_outputs(arguments, report, kept, tokenizer)
    print(tabulate_speeds(report["results"], report["drafters"]).to_text())
    print(
        "compilation, seconds: "
        + ", ".join(f"{name} {value:.1f}" for name, value in report["compile_seconds"].items())
    )
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    import jaxspec
    from jaxspec.bench.demo import demo
    from jaxspec.io.tokenizer import load_tokenizer

    params = jaxspec.load("mini", dtype="float32")
    agreed = demo(
        params, load_tokenizer(params.spec.tokenizer), max_new_tokens=arguments.max_new_tokens
    )
    return 0 if agreed else 1
