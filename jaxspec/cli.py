"""The `jaxspec` command: generate, bench, demo; inspect, convert and doctor are in `jaxspec.cli_tools`.

Subcommands of bench are in `jaxspec.cli_bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from jaxspec import _distribution, cli_bench, cli_policies, cli_tools

USER_ERROR = 2
_DECODE_OPTIONS = (
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "ignore_eos",
    "block_size",
    "depth",
    "tree_width",
    "fanout",
    "score",
    "entropy_weight",
    "acceptance",
    "score_temperature",
)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit status is 0, 1 (the demo's texts differ, the doctor warns) or 2 (the user's mistake)."""
    # transformers, imported for tokenizers alone, would say on the terminal that it found no PyTorch.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    arguments = _parser().parse_args(argv)
    try:
        _distribution.check()
        return arguments.run(arguments)
    except (ValueError, OSError, ImportError) as error:
        if isinstance(error, BrokenPipeError):  # the reader of a pipe has left; nothing more can be written
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
    parser = argparse.ArgumentParser(prog="jaxspec", description="Lossless tree speculative decoding in JAX.")
    commands = parser.add_subparsers(required=True, metavar="command")

    generate = commands.add_parser("generate", help="complete a prompt; the text streams to the terminal")
    generate.set_defaults(run=_generate)
    _add_model(generate)
    prompt = generate.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", help="default: --prompt-file, else standard input")
    prompt.add_argument("--prompt-file", type=Path, help="file that holds the prompt")
    generate.add_argument("--chat", action="store_true", help="the prompt is a user's chat message")
    generate.add_argument("--token-ids", action="store_true", help="the prompt is token ids, separated by spaces or commas")
    generate.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop string; may be repeated")
    generate.add_argument("--stop-id", action="append", default=[], type=int, metavar="ID", help="stop token; may be repeated")
    generate.add_argument("--method", help="ar, or the name of a drafter (default: the model's first)")
    generate.add_argument(
        "--builder", help="chain, best_first, expand, beam, static, dynamic or rank_guided (default: what suits the drafter)"
    )
    generate.add_argument("--coupled", choices=("on", "off"), default="on", help="draft under the target's noise (default: on)")
    generate.add_argument("--json", action="store_true", help="print text, tokens, stats and timings as JSON instead")
    _add_decode(generate)
    cli_policies.add_policy(generate)

    bench = commands.add_parser("bench", help="measure methods on a file of prompts")
    bench.set_defaults(run=_bench)
    _add_model(bench)
    bench.add_argument(
        "--methods",
        default="ar,dflash-chain,dflash-ddtree,jetspec-tree",
        help="comma-separated: ar, all (every drafter with the builders that suit it), or "
        "<drafter>-<builder>[+score][@budget][/setting...] with builder chain, ddtree, tree, beam, static, dynamic or rank, "
        "score entropy or hybrid0.1, setting d6 (depth), w4 (tree width) or b8 (block size), as in eagle3-dynamic@12/d6/w4; "
        "last /best, /bastion-paper or /bastion-code lets a policy choose the rows, up to the budget "
        "(default: %(default)s)",
    )
    bench.add_argument("--prompts", type=Path, help="required: .jsonl or .jsonl.gz; see jaxspec.bench.read_prompts")
    bench.add_argument("--limit", type=int, default=30, help="prompts per domain (default: %(default)s)")
    bench.add_argument("--repeats", type=int, default=3, help="decodes of each prompt by each method (default: %(default)s)")
    bench.add_argument("--chat", action="store_true", help="prompts are users' chat messages")
    bench.add_argument("--coupled", choices=("on", "off", "both"), default="on", help="draft under the target's noise")
    bench.add_argument("--no-profile", action="store_true", help="skip the split of a round into phases")
    bench.add_argument("--json", type=Path, metavar="OUT.json", help="write settings and results here")
    _add_decode(bench, max_new_tokens=128, temperatures=True)
    cli_bench.add_commands(bench)

    demo = commands.add_parser("demo", help="three held-out prompts, plainly and with the JetSpec tree")
    demo.set_defaults(run=_demo)
    demo.add_argument("--max-new-tokens", type=int, default=128, help="(default: %(default)s)")
    cli_policies.add_commands(commands)
    cli_tools.add_commands(commands)
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="mini", help="mini, a hub id or a directory (default: %(default)s)")
    parser.add_argument(
        "--drafter",
        action="append",
        metavar="[NAME=]SOURCE",
        help="a shipped drafter's name, hub id or directory; with NAME= may be repeated (default: all that ship)",
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: what suits the device")
    parser.add_argument("--quantize", choices=("int8", "fp8"), help="store the target's weights in one byte each")


def _add_decode(parser: argparse.ArgumentParser, max_new_tokens: int = 256, temperatures: bool = False) -> None:
    add = parser.add_argument
    add("--max-new-tokens", type=int, default=max_new_tokens, help="(default: %(default)s)")
    if temperatures:
        what = "0 is greedy; several, as in 0,1, are measured one after the other (default: 0)"
        add("--temperature", type=_temperatures, default=(0.0,), help=what)
    else:
        add("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    add("--top-k", type=int, help="sample among the k most probable tokens")
    add("--top-p", type=float, help="sample among the most probable tokens that hold this much probability")
    add("--min-p", type=float, help="sample among tokens at least this fraction as probable as the first")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--ignore-eos", action="store_true", help="do not stop at the model's end-of-text tokens")
    add("--budget", type=int, default=32, help="rows verified in a round, the root included (default: %(default)s)")
    add("--block-size", type=int, help="slots of the drafter's block, the anchor included (default: as trained)")
    add("--depth", type=int, help="longest drafted path of drafters that work in steps (default: the drafter's own)")
    add("--tree-width", type=int, help="for expand, children of an expanded node; for beam and dynamic, nodes of a depth")
    add("--fanout", help="for builder expand: rule of how many children nodes get (top2gap, entropy_gate, rank_decay, ...)")
    add("--paths", help="for builder static: rank paths of the tree's nodes as JSON, such as [[0],[0,0],[1]], or a file of it")
    add("--score", default="logprob", help="order of paths: logprob, entropy or hybrid (default: %(default)s)")
    add("--entropy-weight", type=float, help="for score hybrid: what a nat of the drafter's entropy costs (default: 0.1)")
    add("--acceptance", default="match", help="match, sequential or rejection (default: %(default)s)")
    add("--score-temperature", type=float, help="divisor of draft scores; below 1, deeper trees (default: the drafter's own)")


def _temperatures(text: str) -> tuple[float, ...]:
    """Numbers separated by commas, each once."""
    return tuple(dict.fromkeys(float(number) for number in text.split(",")))


def _load(arguments: argparse.Namespace):
    import jaxspec

    drafter = _drafters(arguments)
    return jaxspec.load(arguments.model, drafter=drafter, dtype=arguments.dtype, quantize=arguments.quantize)


def _drafters(arguments: argparse.Namespace):
    """The value of --drafter as `jaxspec.load` takes it."""
    named = dict(item.partition("=")[::2] for item in arguments.drafter or () if "=" in item)
    plain = [item for item in arguments.drafter or () if "=" not in item]
    if len(plain) + bool(named) > 1:
        raise ValueError("give one --drafter SOURCE, or each as --drafter NAME=SOURCE")
    return named or (plain[0] if plain else None)


def _decode_options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in _DECODE_OPTIONS}


def _tree_paths(text: str | None):
    """The value of --paths, checked; None where it was not given."""
    from jaxspec.builders import make_paths

    if text is None:
        return None
    try:
        return make_paths(json.loads(text if text.lstrip().startswith("[") else Path(text).read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise ValueError(f"--paths is not JSON ({error}): write it as [[0],[0,0],[1]]") from None


def _generate(arguments: argparse.Namespace) -> int:
    import jaxspec

    prompt = _prompt(arguments)
    params = _load(arguments)
    options = _decode_options(arguments) | {
        "stop": (*arguments.stop, *arguments.stop_id),
        "method": arguments.method,
        "builder": arguments.builder,
        "paths": _tree_paths(arguments.paths),
        "budget": arguments.budget,
        "coupled": arguments.coupled == "on",
    }
    options["policy"] = cli_policies.policy_of(params, arguments.policy, options)
    if arguments.json:
        out = jaxspec.decode(params, prompt, **options)
        print(json.dumps({"text": out.text, "tokens": out.tokens, "stats": out.stats.to_dict()}))
        return 0
    for piece in jaxspec.stream(params, prompt, **options):
        print(piece if isinstance(piece, str) else "".join(f"{token} " for token in piece), end="", flush=True)
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
    if not arguments.token_ids:
        return [{"role": "user", "content": text}] if arguments.chat else text
    ids = text.replace(",", " ").split()
    wrong = next((item for item in ids if not item.isdecimal()), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is not a token id: with --token-ids the prompt is integers separated by spaces or commas")
    return [int(item) for item in ids]


def _bench(arguments: argparse.Namespace) -> int:
    from jaxspec import bench
    from jaxspec.checkpoint import training_costs
    from jaxspec.io.tokenizer import load_tokenizer

    if arguments.prompts is None:
        raise ValueError("bench needs prompts: give --prompts FILE, or a subcommand such as `jaxspec bench latency`")
    paths = _tree_paths(arguments.paths)
    how = {"budget": arguments.budget, "coupled": arguments.coupled, "paths": paths}
    bench.parse_methods(arguments.methods, **how)  # mistakes are told before a large model is read
    if arguments.coupled == "both" and not any(arguments.temperature):
        raise ValueError("--coupled both compares drafting at a temperature above 0: give --temperature")
    if arguments.json and not arguments.json.absolute().parent.is_dir():
        raise FileNotFoundError(f"--json: there is no directory {arguments.json.parent}")
    params = _load(arguments)
    methods = bench.parse_methods(arguments.methods, **how, spec=params.spec)
    tokenizer = load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
    prompts = bench.read_prompts(arguments.prompts, tokenizer, limit=arguments.limit, chat=arguments.chat)
    options = _decode_options(arguments)
    report = bench.benchmark(
        params,
        prompts,
        methods,
        repeats=arguments.repeats,
        options={name: value for name, value in options.items() if name != "temperature"},
        temperatures=arguments.temperature,
        costs=training_costs(arguments.model, drafter=_drafters(arguments)),
        with_profile=not arguments.no_profile,
        progress=lambda line: print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True) if sys.stderr.isatty() else None,
    )
    # Files go by name: a report may be published, and where they lay says nothing about the figures.
    given = {key: value for key, value in vars(arguments).items() if key not in ("run", "json")}
    settings = {key: value.name if isinstance(value, Path) else value for key, value in given.items()}
    report["settings"] = settings | {"methods": {method.name: method.options for method in methods}}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(bench.table(report["results"], report["drafters"]))
    print("compilation, seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in report["compile_seconds"].items()))
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    import jaxspec
    from jaxspec.bench.demo import demo
    from jaxspec.io.tokenizer import load_tokenizer

    params = jaxspec.load("mini", dtype="float32")
    agreed = demo(params, load_tokenizer(params.spec.tokenizer), max_new_tokens=arguments.max_new_tokens)
    return 0 if agreed else 1
