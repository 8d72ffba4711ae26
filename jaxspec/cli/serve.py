"""`jaxspec serve`: an OpenAI endpoint and a chat page."""

from __future__ import annotations

import argparse
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from jaxspec.cli.shared import learning, options, parse, values
from jaxspec.core.runtime import distribution

if TYPE_CHECKING:
    from jaxspec.core.params import Params
    from jaxspec.serve.engine import Engine
    from jaxspec.serve.http.settings import HttpSettings

NEEDED = ("fastapi", "uvicorn", "prometheus_client")


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "serve",
        run,
        "serve a model to many clients: an OpenAI endpoint, and a chat page at /",
        "jaxspec serve smollm2-135m --port 8000",
    )
    options.add_model(parser, default=None)
    options.add_devices(parser)
    options.add_processes(parser)
    _add_engine(parser)
    learning.add_adaptation(parser)
    _add_address(parser)
    _add_limits(parser)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    options.add_builder(parser)
    add("--budget", type=int, help="most rows of a tree (default: 32, on a CPU 8)")
    options.add_lookup(parser)
    add(
        "--rule",
        choices=options.RULES,
        default=options.RULES[0],
        help=f"how the rows of a round are shared among slots {options.DEFAULT}",
    )
    add("--slots", type=int, default=8, help=f"requests that run at once {options.DEFAULT}")
    add(
        "--capacity",
        type=int,
        help="rows of a slot's key-value caches (default: 2048, or what the model's positions need)",
    )
    add("--queue", type=int, default=64, help=f"requests that wait at most {options.DEFAULT}")
    add(
        "--max-logprobs",
        type=int,
        default=20,
        metavar="N",
        help=f"most alternatives of a token with log-probabilities, 0 for none {options.DEFAULT}",
    )


def _add_address(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help=f"address to listen on {options.DEFAULT}")
    add(
        "--port",
        type=_parse_port,
        default=8000,
        help=f"port, 0 for a free one {options.DEFAULT}",
    )
    add("--api-key", help=f"key that clients must send (default: ${options.KEY_VARIABLE})")
    add("--without-key", action="store_true", help="let everybody in who reaches the address")
    add(
        "--allow-host",
        action="append",
        default=[],
        type=_parse_host,
        metavar="NAME",
        help="Host header, without its port, of a reverse proxy to accept on a loopback address; "
        "repeatable",
    )
    add("--served-model-name", metavar="NAME", help="name of the model for clients")
    add("--no-page", action="store_true", help="do not serve the chat page")
    add(
        "--metrics-prefix",
        type=_parse_prefix,
        default="jaxspec",
        help=f"what names of metrics begin with, such as vllm {options.DEFAULT}",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    def add(name: str, default: float | None, text: str) -> None:
        parser.add_argument(
            name, type=parse.parse_time, default=default, metavar="SECONDS", help=text
        )

    add("--request-timeout", None, "longest request (default: no limit)")
    add("--send-timeout", 30.0, f"drop clients that read nothing for so long {options.DEFAULT}")
    add(
        "--visit-timeout",
        300.0,
        f"give the engine up if it spends longer in the device {options.DEFAULT}",
    )
    add("--drain-timeout", 30.0, f"let streams go on after SIGTERM {options.DEFAULT}")


def _parse_port(text: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 0 to 65535")
    return int(text)


def _parse_host(text: str) -> str:
    # Ports are not compared, so a name with one would match no request. IPv6 has more colons.
    if not text or "/" in text or text.count(":") == 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no host name: give it without a port")
    return text


def _parse_prefix(text: str) -> str:
    if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no prefix: give letters, digits and _")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Load the model, listen, and serve until a signal; in a process after the first, follow it."""
    distribution.require("serve", *NEEDED)
    learning.check_adaptation(arguments)
    key = choose_key(arguments)
    if arguments.coordinator or arguments.processes or arguments.process_id is not None:
        import jax

        from jaxspec.core.runtime.processes import end_together

        values.join_processes(arguments)
        with end_together():
            return _follow(arguments) if jax.process_index() else _serve(arguments, key)
    return _serve(arguments, key)


def _serve(arguments: argparse.Namespace, key: str | None) -> int:
    """Listen, load the model, and serve until a signal."""
    from jaxspec.serve.http import server
    from jaxspec.serve.http.service import Service

    with server.listen(arguments.host, arguments.port) as sock:
        # After the address is known to be free, since JAX takes a second to import.
        engine, params = _make_engine(arguments)
        settings = make_settings(arguments, key, engine.room)
        service = Service(engine, params.tokenizer, settings)
        _announce(arguments, sock.getsockname()[1])
        return server.serve(service, sock)


def _follow(arguments: argparse.Namespace) -> int:
    """Load the model, and run what process 0 runs until it ends."""
    import jax

    engine, _ = _make_engine(arguments)
    for one in (signal.SIGTERM, signal.SIGINT):
        # Launchers signal all processes. Process 0 drains, and then lets the others end.
        signal.signal(one, signal.SIG_IGN)
    print(f"process {jax.process_index()} follows process 0", flush=True)
    engine.follow()
    return 0


def _make_engine(arguments: argparse.Namespace) -> tuple[Engine, Params]:
    """Load the model and make its engine."""
    from jaxspec.serve.factory import make_engine

    params = values.load_params(arguments)
    names = (
        "slots",
        "capacity",
        "builder",
        "budget",
        "rule",
        "queue",
        "max_logprobs",
    )
    options = {name: getattr(arguments, name) for name in names}
    options |= {"drafter": _choose_drafters(arguments), "lookup": values.choose_lookup(arguments)}
    if arguments.adapt is None:
        return make_engine(params, **options), params
    return learning.make_engine(arguments, params, options), params


def _choose_drafters(arguments: argparse.Namespace) -> str | list[str] | None:
    """Return the drafters among which requests choose; None: the engine tries those it loaded."""
    given = [item.partition("=")[0] for item in arguments.drafter or ()]
    return given if len(given) > 1 else values.choose_drafter(arguments)


def choose_key(arguments: argparse.Namespace) -> str | None:
    """Return the key that clients must send, None for none.

    Raises:
      ValueError: other machines reach the address, and there is no key; or no client could send it.
    """
    from jaxspec.serve.http.server import is_loopback

    given = arguments.api_key
    key = given if given is not None else os.environ.get(options.KEY_VARIABLE) or None
    if key is not None and not re.fullmatch("[!-~]+", key):
        raise ValueError("the API key must be of visible ASCII characters, without spaces")
    if key is None and not is_loopback(arguments.host) and not arguments.without_key:
        raise ValueError(
            f"other machines reach {arguments.host}: set {options.KEY_VARIABLE}, "
            "or pass --without-key"
        )
    return key


def make_settings(arguments: argparse.Namespace, key: str | None, room: int) -> HttpSettings:
    """Make the endpoint's settings from the options."""
    from jaxspec.serve.http.server import is_loopback
    from jaxspec.serve.http.settings import HttpSettings

    # Names under which a browser may call a local server; a page elsewhere can bring its own name.
    local = ("localhost", "127.0.0.1", "::1", arguments.host, *arguments.allow_host)
    return HttpSettings(
        model=arguments.served_model_name or name_model(arguments.model),
        room=room,
        key=key,
        most_choices=arguments.queue,
        request_timeout=arguments.request_timeout,
        send_timeout=arguments.send_timeout,
        visit_timeout=arguments.visit_timeout,
        drain_timeout=arguments.drain_timeout,
        metrics_prefix=arguments.metrics_prefix,
        page=not arguments.no_page,
        hosts=local if is_loopback(arguments.host) else (),
    )


def name_model(source: str) -> str:
    """Name a model for clients; of a path only the last part, since it says nothing to them."""
    return Path(source).name if Path(source).exists() else source


def _announce(arguments: argparse.Namespace, port: int) -> None:
    """Print where the server is."""
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    page = "" if arguments.no_page else "; a chat page is at /"
    print(f"serving http://{host}:{port}/v1{page}", flush=True)
