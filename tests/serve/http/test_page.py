"""The chat page: its files, conversations and errors."""

import json
import os
import re
from pathlib import Path

import fake_engine
import pytest
from chat_page import (
    HI,
    ask,
    click,
    needs_browser,
    open_page,
    set_value,
    text_in,
    text_of,
    wait_for_answer,
)
from fake_engine import ByteTokenizer, expected_tokens

from jaxspec.serve.requests import ServeRequest

http_server = pytest.importorskip("http_server")


def test_files_come_from_the_package_alone(server):
    folder = Path(http_server.server.__file__).parent.parent / "page"
    names = [one.name for one in folder.iterdir() if one.suffix in (".js", ".css")]
    assert {"page.js", "page.css", "tree.js"} <= set(names)
    for path in ("/", *(f"/{name}" for name in names)):
        response = server.http.get(path)
        assert response.status_code == 200 and "nosniff" in response.headers.values()
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        text = response.text.replace("http://www.w3.org/2000/svg", "")
        assert text and not re.search(r"https?://\w|@import|url\(|innerHTML|outerHTML", text)
        assert not re.search("insertAdjacentHTML|document.write|eval|new Function", text)
    assert server.http.get("/__init__.py").status_code == 404


def test_a_server_without_the_page():
    with http_server.running(page=False) as server:
        assert server.http.get("/").status_code == 404


# --- The conversation.


@needs_browser
def test_chat(page):
    set_value(page, "tokens", 40)
    click(page, "#markdown")
    ask(page, "Hi")
    tokens = wait_for_answer(page)
    said = text_of(HI, 40)
    assert "".join(text for _, text in tokens) == said
    assert {kind for kind, _ in tokens} == {"drafted", "own"}
    # The conversation goes on with what was said.
    ask(page, "And?")
    more = [*HI, {"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
    assert "".join(text for _, text in wait_for_answer(page, 2)) == text_of(more, 40)
    # A new chat begins without it.
    click(page, "#new")
    assert page.evaluate("document.querySelectorAll('#messages > :not(#welcome)').length") == 0
    ask(page, "Hi")
    assert "".join(text for _, text in wait_for_answer(page)) == said


@needs_browser
@pytest.mark.parametrize(
    ("model", "example", "warning"),
    [
        ("fake", "Python function", ""),
        ("mini", "How many apples", "mostly nonsense"),
        ("smollm2-135m", "Python function", "often wrong"),
        ("Me/SmolLM2-135M-Instruct", "Python function", "often wrong"),
        ("mini-cpm", "Python function", ""),
    ],
)
def test_an_empty_page_says_what_to_try(tab, model, example, warning):
    with http_server.running(model=model) as server:
        open_page(tab, server, model)
        assert "speculative decoding" in text_in(tab, "#welcome")
        examples = tab.evaluate("[...document.querySelectorAll('#examples button')].length")
        assert examples == 4 and example in text_in(tab, "#examples")
        assert warning in text_in(tab, "#warning") and bool(warning) == bool(
            text_in(tab, "#warning")
        )
        question = text_in(tab, "#examples button")
        click(tab, "#examples button")
        assert wait_for_answer(tab)
        assert text_in(tab, "li.user .plain") == question and tab.evaluate(
            "document.getElementById('welcome').hidden"
        )


class PlainTokenizer(ByteTokenizer):
    has_chat_template = False


@needs_browser
def test_a_model_without_a_template_continues_texts(tab):
    with http_server.running(tokenizer=PlainTokenizer()) as server:
        open_page(tab, server)
        assert "continues texts" in text_in(tab, "#what")
        click(tab, "#examples button")
        said = "".join(text for _, text in wait_for_answer(tab))
        prompt = text_in(tab, "li.user .plain").encode()
        tokens = expected_tokens(ServeRequest(tuple(prompt), 256))
        assert said == ByteTokenizer().decode(tokens)  # as it is, since a text is not Markdown
        assert tab.errors == []


@needs_browser
def test_what_anybody_writes_is_text(page, monkeypatch):
    """Markup in messages becomes no element."""
    hostile = b"<img src=x onerror=alert(1)> <b>bold</b> [a](javascript:alert(1))"
    monkeypatch.setattr(fake_engine, "expected_tokens", lambda request: list(hostile))
    ask(page, "<img src=x onerror=alert(1)><b>bold</b>")
    tokens = wait_for_answer(page)
    assert "".join(text for _, text in tokens) == hostile.decode()
    assert page.evaluate("document.querySelectorAll('#messages :is(img, b, a)').length") == 0


@needs_browser
def test_markdown_can_be_turned_off(page, monkeypatch):
    monkeypatch.setattr(
        fake_engine, "expected_tokens", lambda request: list(b"a **b**\n```\nc\n```")
    )
    ask(page, "Hi")
    assert "".join(text for _, text in wait_for_answer(page)) == "a bc"
    assert page.evaluate("document.querySelectorAll('.text :is(strong, pre code)').length") == 2
    click(page, "#markdown")
    assert text_in(page, ".text") == "a **b**\n```\nc\n```"


# --- Errors.


@needs_browser
def test_an_error_is_shown_and_the_question_can_be_sent_again(page):
    set_value(page, "tokens", 9999)
    ask(page, "Hi")
    page.wait_for("document.querySelector('li.error')?.textContent.includes('512 tokens')")
    assert "Start a new chat" in text_in(page, "li.error")
    assert page.evaluate("document.querySelectorAll('li.assistant').length") == 0
    assert page.evaluate("document.getElementById('prompt').value") == "Hi"
    set_value(page, "tokens", 20)
    page.evaluate("document.getElementById('form').requestSubmit()")
    assert wait_for_answer(page)
    page.errors.clear()  # the browser notes the status


CUT = 'new Response("data: {\\"choices\\": []}\\n\\n")'
NEWS = 'data: {"choices": []}\n\ndata: {"error": {"message": "The engine gave up."}}\n\n'
BUSY = '{"error": {"message": "The queue is full.", "code": "queue_full"}}'


@needs_browser
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("Promise.reject(new TypeError('Failed to fetch'))", "Is `jaxspec serve` still running?"),
        ("new Response('<h1>Bad gateway</h1>', { status: 502 })", "answered with status 502"),
        (CUT, "The connection ended before the answer did."),
        (f"new Response({json.dumps(NEWS)})", "The engine gave up."),
        (
            f"new Response('{BUSY}', {{ status: 429, headers: {{ 'Retry-After': '7' }} }})",
            "The queue is full. Try again in 7 s.",
        ),
    ],
)
def test_what_goes_wrong_is_said_in_words(page, answer, message):
    page.evaluate(f"window.fetch = async () => {answer}")
    ask(page, "Hi")
    page.wait_for(
        f"document.querySelector('li.error')?.textContent.includes({json.dumps(message)})"
    )
    assert page.evaluate("document.querySelector('li.error').getAttribute('role')") == "alert"
    assert not page.evaluate("document.getElementById('send').hidden")


@needs_browser
def test_a_server_that_is_gone_or_not_ready(page):
    page.wait_for("document.querySelector('[data-counter=tokens]').textContent === '0'")
    state = "document.getElementById('state').textContent"
    page.evaluate("window.real = fetch; window.fetch = () => Promise.reject(new TypeError())")
    page.wait_for(f"{state} === 'The server cannot be reached.'")
    body = '{"status": "warming_up"}'
    page.evaluate(f"window.fetch = async () => new Response('{body}', {{ status: 503 }})")
    page.wait_for(f"{state}.startsWith('The model is warming up')")
    page.evaluate("window.fetch = window.real")
    page.wait_for(f"{state} === ''")


@needs_browser
def test_key(tab):
    with http_server.running(key="sesame") as server:
        tab.call("Page.navigate", url=server.url)
        tab.wait_for("document.getElementById('what')?.textContent.includes('Enter the key')")
        set_value(tab, "key", "sesame")
        tab.evaluate("document.getElementById('key').dispatchEvent(new Event('change'))")
        tab.wait_for("document.getElementById('model').textContent === 'fake'")
        ask(tab, "Hi")
        assert wait_for_answer(tab)


@needs_browser
def test_picture(page, tmp_path):
    """JAXSPEC_PICTURE=FILE keeps the picture."""
    ask(page, "Hi")
    wait_for_answer(page)
    click(page, ".text .drafted")
    path = Path(os.environ.get("JAXSPEC_PICTURE", tmp_path / "page.png"))
    page.save_picture(path)
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
