"""`jaxspec chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import dataclasses
import io
import sys
from typing import TYPE_CHECKING, Any

from jaxspec.call.arguments import check_template
from jaxspec.cli.shared import asking, options, values
from jaxspec.core.runtime import interrupts
from jaxspec.core.runtime.near_miss import choose_one

if TYPE_CHECKING:
    from jaxspec.call.hooks import Hooks
    from jaxspec.call.output import Output
    from jaxspec.call.session import Session
    from jaxspec.core.params import Params

HELP = (
    "/stats: figures of the last answer; /drafter [NAME]: show or choose the drafter; "
    "/reset: forget; /quit"
)


def add_command(commands: options.Commands) -> None:
    """Add the command to the parser."""
    parser = options.add_parser(
        commands,
        "chat",
        run,
        "talk with a chat model; accepted draft tokens appear in green, and Ctrl-C stops an answer",
        "jaxspec chat smollm2-135m",
    )
    options.add_model(parser)
    options.add_devices(parser)
    parser.add_argument("--system", help="system message that the conversation begins with")
    options.add_call(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read messages and answer them until the end of input."""
    params = values.load_params(arguments)
    chat = Chat(params, values.collect_call(params, arguments), arguments.system)
    print(f"{asking.describe_template(arguments)}{HELP}")
    # A terminal may send a part of a character, of which the rest was erased.
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt) as end:
            print()
            return 0 if isinstance(end, EOFError) else interrupts.STATUS
        if line.strip() == "/quit":
            return 0
        if line.startswith("/"):
            print(chat.command(line))
        elif line.strip():
            chat.answer(line)


class Chat:
    """A conversation with a model.

    Attributes:
      messages: what was said, as chat messages.
      last: output of the last complete answer.
    """

    def __init__(self, params: Params, given: dict[str, Any], system: str | None = None):
        self.params, self.given, self.tokenizer = params, given, params.tokenizer
        if self.tokenizer is None or not self.tokenizer.has_chat_template:
            raise ValueError("this model has no chat template: use `jaxspec generate --raw`")
        check_template(given.get("template"), self.tokenizer)
        self._begin = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = list(self._begin)
        self.last: Output | None = None

    def answer(self, question: str) -> None:
        """Stream the answer to the terminal; Ctrl-C ends it, and what was said counts."""
        asked, said = [*self.messages, {"role": "user", "content": question}], []
        try:
            with interrupts.stopping_the_body_alone():
                prepared = self._prepare(asked)
                if prepared is None:
                    return
                self.last = self._stream(*prepared, said)
        except KeyboardInterrupt:
            print(" [stopped]", end="")
        print()
        self.messages = [*asked, {"role": "assistant", "content": "".join(said)}]

    def _prepare(self, asked: list[dict[str, str]]) -> tuple[Session, Hooks] | None:
        from jaxspec.call.session import prepare
        from jaxspec.tuner.tuner import process_tuner, tune

        try:
            session = prepare(self.params, self._shorten(asked), **self.given)
            return tune(session, process_tuner())
        except ValueError as error:
            print(f"error: {error}")
            return None

    def _stream(self, session: Session, hooks: Hooks, said: list[str]) -> Output:
        """Print an answer round by round; append the text of each to `said`."""
        from jaxspec.call.stream import stream_rounds
        from jaxspec.view.text import mark_round, wants_colour

        colour, rounds = wants_colour(sys.stdout.isatty()), stream_rounds(session, hooks)
        while True:
            try:
                part = next(rounds)
            except StopIteration as ended:
                return ended.value
            said.append(part.text or "")
            print(mark_round(part, self.tokenizer.decode, colour=colour), end="", flush=True)

    def command(self, line: str) -> str:
        """Carry out a line that begins with a slash; return what to print."""
        name, _, argument = line.strip().partition(" ")
        if name == "/stats":
            return self._describe_last()
        if name == "/reset":
            self.messages = list(self._begin)
            return "The conversation begins again."
        if name == "/drafter":
            return self._choose(argument.strip())
        return HELP

    def _choose(self, name: str) -> str:
        spec = self.params.spec
        known = ", ".join(spec.drafter_names)
        if name and name not in spec.drafter_names:
            return f"unknown drafter {name!r}: {choose_one(name, spec.drafter_names)}"
        if name:
            suited = dataclasses.replace(self.given["speculation"], builder=None)
            self.given = self.given | {"drafter": name, "speculation": suited}
        return f"drafter {self.given['drafter'] or spec.default_drafter} (known: {known})"

    def _describe_last(self) -> str:
        if self.last is None:
            return "There is no complete answer yet."
        stats = self.last.stats
        return (
            f"{stats.emitted} tokens in {stats.rounds} rounds, "
            f"{stats.mean_acceptance_length:.2f} tokens per round, "
            f"{stats.tokens_per_second:.1f} tokens/s after a prefill of "
            f"{stats.prefill_seconds:.2f} s"
        )

    def _shorten(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """Forget the oldest exchanges that leave no room for an answer."""
        limit = self.params.spec.target.max_positions - self.given["max_new_tokens"]
        kept, first, template = list(messages), len(self._begin), self.given.get("template") or {}
        while len(self.tokenizer.chat(kept, **template)) > limit and len(kept) > first + 1:
            del kept[len(self._begin) : len(self._begin) + 2]
        return kept
