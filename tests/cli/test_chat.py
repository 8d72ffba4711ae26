"""`jaxspec chat`, on mini, with its input and output replaced."""

import pytest

import jaxspec
from jaxspec.call import stream
from jaxspec.call.stream import StreamedRound
from jaxspec.cli import main as cli
from jaxspec.view.text import mark_round

OPTIONS = ["--max-new-tokens", "12", "--budget", "4", "--drafter", "dflash"]


@pytest.fixture
def talk(monkeypatch, capsys):
    """Return a function that plays lines and returns what is printed."""

    def play(*lines, options=()):
        left = iter(lines)

        def read(prompt):
            try:
                return next(left)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", read)
        status = cli.main(["chat", *OPTIONS, *options])
        shown = capsys.readouterr()
        assert status == 0, shown.err
        return shown.out

    return play


def test_answers_are_those_of_decode(talk):
    """The second question is asked with the first answer before it."""
    params = jaxspec.load("mini", drafter="dflash")
    first, second = "What is 2 + 2?", "And 3 + 3?"
    asked = [{"role": "user", "content": first}]
    one = jaxspec.decode(params, asked, drafter="ar", max_new_tokens=12).text
    asked += [{"role": "assistant", "content": one}, {"role": "user", "content": second}]
    two = jaxspec.decode(params, asked, drafter="ar", max_new_tokens=12).text
    shown = talk(first, second, "/stats")
    assert one in shown and two in shown.split(one, 1)[1]
    assert "12 tokens in" in shown and "tokens per round" in shown


def test_methods_and_resets(talk):
    shown = talk(
        "/stats", "/drafter", "/drafter ar", "/drafter oak", "/reset", "/what", "/quit", "never"
    )
    assert "no complete answer yet" in shown
    assert (
        "drafter dflash (known: ar, dflash, prompt_lookup, suffix)" in shown
        and "drafter ar (" in shown
    )
    assert "unknown drafter 'oak'" in shown and "begins again" in shown
    assert shown.count("/stats: figures") == 2  # at the start, and for a command that is unknown


def test_an_interrupt_stops_the_answer_alone(talk, monkeypatch):
    def interrupted(session, hooks):
        yield StreamedRound("Half an", [1, 2], False)
        raise KeyboardInterrupt

    monkeypatch.setattr(stream, "stream_rounds", interrupted)
    shown = talk("Why?", "/reset")
    assert "Half an [stopped]" in shown and "begins again" in shown


def test_the_oldest_exchange_is_forgotten(talk, monkeypatch):
    """mini has few positions: a conversation that outgrows them goes on."""
    lengths = []

    def answered(session, hooks):
        lengths.append(int(session.lengths[0]))
        yield StreamedRound("That.", [1, 2], False)

    monkeypatch.setattr(stream, "stream_rounds", answered)
    question = "What is it? " * 150
    assert "error" not in talk(*[question] * 6)
    assert lengths[0] < lengths[1] and lengths[-2] == lengths[-1] == max(lengths)


def test_models_without_a_template_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(jaxspec.Params, "tokenizer", None)
    assert cli.main(["chat", *OPTIONS]) == 2
    assert "no chat template" in capsys.readouterr().err


def test_drafted_text_is_green():
    names = {1: "a", 2: "b", 3: "c"}

    def decode(ids):
        return "".join(names[i] for i in ids)

    part = StreamedRound("abc", [1, 2, 3], True)
    assert mark_round(part, decode, colour=True) == "\x1b[32mab\x1b[0mc"
    assert mark_round(part, decode) == "abc"
    assert mark_round(StreamedRound("c", [3], True), decode, colour=True) == "c"
    assert mark_round(StreamedRound("a", [1], False), decode, colour=True) == "a"
    names = {1: " a", 2: " b"}
    part = StreamedRound(" a b", [1, 2], True)
    shown = mark_round(part, lambda ids: decode(ids).removeprefix(" "), colour=True)
    assert shown == "\x1b[32m a\x1b[0m b"


def test_half_surrogate_pairs_can_be_said(talk):
    """A command line's bytes that are no UTF-8 arrive as such halves."""
    shown = talk(
        "hi \ud83d there", "/drafter \udcff", options=("--system", "\udcff", "--stop", "\udcff")
    )
    assert "error" not in shown and "unknown drafter '\\udcff'" in shown
