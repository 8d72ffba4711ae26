"""The chat page in a headless Chromium, against a server with a fake engine."""

import json
import os
import string
from pathlib import Path

import pytest
from fake_engine import ByteTokenizer, FakeEngine, expected_tokens

from jaxspec.serve.requests import ServeRequest

http_server = pytest.importorskip("http_server")
chromium = pytest.importorskip("chromium")

# Chromium is a package of the operating system: PyPI does not have it, so the development tools
# cannot bring it. The tests without this mark run everywhere.
needs_browser = pytest.mark.skipif(
    not chromium.find_chromium(), reason="there is no Chromium: install it, or set CHROMIUM"
)
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def server():
    with http_server.running(FakeEngine(seconds=0.005)) as one:
        yield one


@pytest.fixture
def page(server, tmp_path):
    with chromium.browse(tmp_path, server.url) as one:
        one.wait_for("document.getElementById('model').textContent === 'fake'")
        yield one
        assert one.errors == []


def ask(page, text: str) -> None:
    page.evaluate(f"document.getElementById('prompt').value = {json.dumps(text)}")
    page.evaluate("document.getElementById('form').requestSubmit()")


def wait_for_answer(page, number: int = 1) -> list[list[str]]:
    """Wait for the answers; return [class, text] of the last one's tokens."""
    page.wait_for(f"document.querySelectorAll('.figures').length === {number}")
    spans = (
        f"[...document.querySelectorAll('li.assistant')].at({number - 1}).querySelectorAll('span')"
    )
    return page.evaluate(f"[...{spans}].map(one => [one.className, one.textContent])")


def text_of(messages, count=256) -> str:
    tokens = expected_tokens(ServeRequest(tuple(ByteTokenizer().chat(messages)), count))
    return ByteTokenizer().decode(tokens)


def test_files_come_from_the_package_alone(server):
    for path in ("/", "/page.css", "/page.js", "/tree.js"):
        response = server.http.get(path)
        assert response.status_code == 200 and "nosniff" in response.headers.values()
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        text = response.text.replace("http://www.w3.org/2000/svg", "")
        assert text and "http:" not in text and "https:" not in text and "innerHTML" not in text


def test_a_server_without_the_page():
    with http_server.running(page=False) as server:
        assert server.http.get("/").status_code == 404


@needs_browser
def test_chat(page):
    page.evaluate("document.getElementById('tokens').value = 40")
    ask(page, "Hi")
    tokens = wait_for_answer(page)
    said = text_of(HI, 40)
    assert "".join(text for _, text in tokens) == said
    assert {kind for kind, _ in tokens} == {"drafted", "own"}
    # The conversation goes on with what was said.
    ask(page, "And?")
    more = [*HI, {"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
    assert "".join(text for _, text in wait_for_answer(page, 2)) == text_of(more, 40)


@needs_browser
def test_tree_of_a_round(page):
    """A click on a token shows the tree of its round, and marks the round's tokens."""
    whole = {  # a character of two bytes belongs to the token of its last one
        word: text_of([{"role": "user", "content": word}], 6) for word in string.ascii_letters
    }
    ask(page, next(word for word, text in whole.items() if text.isascii()))
    tokens = wait_for_answer(page)
    number = [kind for kind, _ in tokens].index("drafted")
    page.evaluate(f"document.querySelectorAll('li.assistant span')[{number}].click()")
    chosen = page.evaluate(
        "[...document.querySelectorAll('li.assistant span.chosen')].map(one => one.textContent)"
    )
    marked = page.evaluate(
        "[...document.querySelectorAll('#tree .accepted title, #tree .bonus title')]"
        ".map(one => one.textContent)"
    )
    assert len(chosen) == 3 and tokens[number][1] in chosen
    assert [json.loads(title[: title.rindex('"') + 1]) for title in marked][1:] == chosen
    assert page.evaluate("document.querySelectorAll('#tree .node').length") == 5


@needs_browser
def test_counters(page, server):
    ask(page, "Hi")
    wait_for_answer(page)
    page.wait_for("document.querySelector('[data-counter=tokens]').textContent === '256'")
    assert page.evaluate("document.querySelector('[data-counter=running]').textContent") == "0"
    assert float(page.evaluate("document.querySelector('[data-counter=length]').textContent")) > 1


@needs_browser
def test_stop_frees_the_slot_and_errors_are_shown(page, server):
    server.engine.seconds = 0.1
    ask(page, "Hi")
    page.wait_for("document.querySelectorAll('li.assistant span').length")
    page.evaluate("document.getElementById('stop').click()")
    http_server.wait_until(lambda: server.engine.idle)
    page.evaluate("document.getElementById('tokens').value = 9999")
    ask(page, "Hi")
    page.wait_for("document.querySelector('li.error')?.textContent.includes('512 tokens')")
    page.errors.clear()  # the browser notes the answer's status


@needs_browser
def test_key(tmp_path):
    with (
        http_server.running(key="sesame") as server,
        chromium.browse(tmp_path, server.url) as page,
    ):
        page.wait_for("document.getElementById('model').textContent.includes('needs a key')")
        page.evaluate("document.getElementById('key').value = 'sesame'")
        page.evaluate("document.getElementById('key').dispatchEvent(new Event('change'))")
        page.wait_for("document.getElementById('model').textContent === 'fake'")
        ask(page, "Hi")
        assert wait_for_answer(page)


@needs_browser
def test_what_a_model_writes_is_text(server, tmp_path):
    """Markup in messages becomes no element."""
    with chromium.browse(tmp_path, server.url) as page:
        ask(page, "<img src=x onerror=alert(1)><b>bold</b>")
        wait_for_answer(page)
        assert page.evaluate("document.querySelectorAll('#messages img, #messages b').length") == 0
        assert page.errors == []


@needs_browser
def test_picture(page, tmp_path):
    """JAXSPEC_PICTURE=FILE keeps the picture."""
    ask(page, "Hi")
    wait_for_answer(page)
    page.evaluate("document.querySelectorAll('#rounds button')[1].click()")
    path = Path(os.environ.get("JAXSPEC_PICTURE", tmp_path / "page.png"))
    page.save_picture(path)
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
