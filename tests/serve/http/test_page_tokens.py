"""The chat page: who made the tokens of an answer, in which round, and how fast."""

import json
import re
import string

import fake_engine
import pytest
from chat_page import HI, ask, click, needs_browser, set_value, text_in, text_of, wait_for_answer

http_server = pytest.importorskip("http_server")


def find_ascii(count: int = 6) -> str:
    """Find a question whose answer has a token for each character, and no space at an end."""
    answers = {word: text_of([HI[0] | {"content": word}], count) for word in string.ascii_letters}
    return next(word for word, text in answers.items() if text.isascii() and text == text.strip())


def move_mouse(page, selector: str, share: float, kind: str = "mouseMoved") -> None:
    """Move the mouse to a share of an element's width, or press it there."""
    box = page.evaluate(f"document.querySelector('{selector}').getBoundingClientRect().toJSON()")
    place = {"x": box["x"] + share * box["width"], "y": box["y"] + box["height"] / 2}
    page.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)


@needs_browser
def test_drafted_tokens_are_tinted_green_and_others_plain(page):
    ask(page, "Hi")
    wait_for_answer(page)
    color = "getComputedStyle(document.querySelector('{}')).backgroundColor"
    assert page.evaluate(color.format(".text .own")) == "rgba(0, 0, 0, 0)"
    red, green, blue = map(int, re.findall(r"\d+", page.evaluate(color.format(".text .drafted"))))
    assert green > red and green > blue
    assert text_in(page, "#legend .drafted") == "drafted and accepted"
    assert text_in(page, "#legend .own") == "the model's own"


def list_marked(page) -> tuple[list[str], list[str]]:
    """Texts of the marked tokens, and of the accepted rows and the bonus of the tree."""
    chosen = page.evaluate(
        "[...document.querySelectorAll('.text .chosen')].map(one => one.textContent)"
    )
    marked = page.evaluate(
        "[...document.querySelectorAll('#tree .accepted title, #tree .bonus title')]"
        ".map(one => one.textContent)"
    )
    return chosen, [json.loads(title[: title.rindex('"') + 1]) for title in marked]


@needs_browser
def test_tree_of_a_round(page):
    """A click on a token shows the tree of its round, and marks the round's tokens."""
    ask(page, find_ascii())
    tokens = wait_for_answer(page)
    number = [kind for kind, _ in tokens].index("drafted")
    click(page, f".text [data-token='{number}']")
    chosen, marked = list_marked(page)
    assert len(chosen) == 3 and tokens[number][1] in chosen and marked == chosen
    assert page.evaluate("document.querySelectorAll('#tree .node').length") == 5
    assert (
        text_in(page, "#round-text")
        == "3 tokens at once: 2 of 3 drafted, and one of the model's own."
    )
    click(page, "#next")
    assert text_in(page, "#round-title") == "Round 2" and list_marked(page)[0] != chosen
    click(page, "#close")
    assert list_marked(page) == ([], [])
    # The engine gave the first tokens without a tree.
    click(page, ".text [data-token='0']")
    assert "no tree" in text_in(page, "#round-text") and list_marked(page) == ([], [])


@needs_browser
def test_pointing_at_the_curve_shows_a_round(page):
    """The mouse previews a round and a click keeps it; the keyboard does the same."""
    set_value(page, "tokens", 33)
    ask(page, "Hi")
    wait_for_answer(page)
    assert text_in(page, ".curve figcaption").startswith("Tokens per round, 10 rounds")
    title = "document.getElementById('round-title').textContent"
    move_mouse(page, ".plot", 0.25)
    page.wait_for(f"{title} === 'Round 3'")
    move_mouse(page, "#prompt", 0.5)
    page.wait_for(f"{title} === 'Draft tree'")
    for kind in ("mousePressed", "mouseReleased"):
        move_mouse(page, ".plot", 0.55, kind)
    move_mouse(page, "#prompt", 0.5)
    page.wait_for(f"{title} === 'Round 6'")
    assert text_in(page, ".curve strong") == "round 6: 3 tokens"
    page.evaluate("document.querySelector('.plot').focus()")
    for key, number in (
        ("ArrowRight", 7),
        ("ArrowLeft", 6),
        ("End", 10),
        ("ArrowRight", 10),
        ("Home", 1),
    ):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        page.wait_for(f"{title} === 'Round {number}'")
        now = "document.querySelector('.plot').getAttribute('aria-valuenow')"
        assert page.evaluate(now) == str(number)


# --- Speed.


def read_figures(page) -> list[str]:
    return page.evaluate(
        "[...document.querySelectorAll('.figures li')].map(one => one.textContent)"
    )


@needs_browser
def test_figures_of_an_answer(page):
    set_value(page, "tokens", 33)
    ask(page, "Hi")
    wait_for_answer(page)
    tokens, speed, length, wait, cut = read_figures(page)
    assert tokens == "33 tokens" and length == "3.00 tokens per round"
    assert 0 < float(re.fullmatch(r"([\d.]+) tokens/s", speed)[1]) <= 3 / 0.005
    assert float(re.fullmatch(r"first token after ([\d.]+) s", wait)[1]) >= 0
    assert cut == "cut at 33 tokens: see Settings"


@needs_browser
@pytest.mark.parametrize("way", ["button", "toggle"])
def test_comparison_with_plain_decoding(page, server, way):
    """The same request, sampled by the same seed, with drafts and without."""
    set_value(page, "tokens", 40)
    set_value(page, "temperature", 0.7)
    if way == "toggle":
        click(page, "#compare")
    ask(page, "Hi")
    wait_for_answer(page)
    if way == "button":
        click(page, "button.compare")
    page.wait_for("document.querySelector('.comparison [role=status]')?.textContent")
    rows = page.evaluate("[...document.querySelectorAll('.rows > *')].map(one => one.textContent)")
    assert [rows[0], rows[3]] == ["with drafts", "plain"]
    fast, slow = (float(row.removesuffix(" tokens/s")) for row in (rows[2], rows[5]))
    verdict = text_in(page, ".comparison [role=status]")
    ratio = float(re.search(r"With drafts it is ([\d.]+) times as fast", verdict)[1])
    assert abs(ratio - fast / slow) < 0.05 and verdict.endswith("The texts are equal.")
    first, drafted, plain = server.engine.seen
    assert first.trace and not drafted.trace and not plain.trace
    assert (first.drafter, drafted.drafter, plain.drafter) == (None, None, "ar")
    assert first.seed == drafted.seed == plain.seed and first.tokens == plain.tokens


@needs_browser
def test_a_comparison_says_where_texts_differ(page, monkeypatch):
    texts = {None: b"abc def", "ar": b"abc dog"}
    monkeypatch.setattr(
        fake_engine, "expected_tokens", lambda request: list(texts[request.drafter])
    )
    ask(page, "Hi")
    wait_for_answer(page)
    click(page, "button.compare")
    page.wait_for("document.querySelector('.comparison [role=status]')?.textContent")
    assert "The texts differ after 5 characters" in text_in(page, ".comparison")


@needs_browser
def test_an_answer_without_drafts_is_not_called_faster(page, server):
    server.engine.per_visit = 1
    set_value(page, "tokens", 33)
    ask(page, "Hi")
    wait_for_answer(page)
    assert "1.00 tokens per round" in read_figures(page)
    click(page, "button.compare")
    page.wait_for("document.querySelector('.comparison [role=status]')?.textContent")
    verdict = text_in(page, ".comparison [role=status]")
    assert verdict == "No drafted token was accepted. The texts are equal."


@needs_browser
def test_a_stopped_answer_is_compared_as_far_as_it_came(page, server):
    server.engine.seconds = 0.05
    ask(page, "Hi")
    page.wait_for("document.querySelectorAll('[data-token]').length > 5")
    click(page, "#stop")
    wait_for_answer(page)
    http_server.wait_until(lambda: server.engine.idle)  # its slot is free
    tokens = int(read_figures(page)[0].split()[0])
    assert "stopped" in read_figures(page) and 5 < tokens < 256
    server.engine.seconds = 0.005
    click(page, "button.compare")
    page.wait_for("document.querySelector('.comparison [role=status]')?.textContent")
    assert "The texts are equal." in text_in(page, ".comparison")
    assert [one.max_new_tokens for one in server.engine.seen] == [256, tokens, tokens]


@needs_browser
def test_counters(page, server):
    ask(page, "Hi")
    wait_for_answer(page)
    page.wait_for("document.querySelector('[data-counter=tokens]').textContent === '256'")
    assert text_in(page, "[data-counter=running]") == "0"
    assert text_in(page, "[data-counter=length]") == f"{256 / (256 - 6):.2f}"  # six were accepted
