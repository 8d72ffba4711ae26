"""What tests do on the chat page, and read from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from fake_engine import ByteTokenizer, expected_tokens

from jaxspec.serve.requests import ServeRequest

if TYPE_CHECKING:
    from chromium import Page

chromium = pytest.importorskip("chromium")  # the client of its protocol may not be installed
# The browser is a package of the operating system: PyPI does not have it, so the development tools
# cannot bring it. The tests without this mark run everywhere.
needs_browser = pytest.mark.skipif(
    not chromium.find_chromium(), reason="there is no Chromium: install it, or set CHROMIUM"
)
HI = [{"role": "user", "content": "Hi"}]


def open_page(tab: Page, server: Any, name: str = "fake") -> None:
    """Open the page of a server, whose model has a name."""
    tab.call("Emulation.clearDeviceMetricsOverride")
    tab.call("Page.navigate", url=server.url)
    tab.wait_for(f"document.getElementById('model')?.textContent === '{name}'")
    tab.errors.clear()


def set_value(page: Page, name: str, value: object) -> None:
    page.evaluate(f"document.getElementById('{name}').value = {json.dumps(value)}")


def click(page: Page, selector: str) -> None:
    page.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


def text_in(page: Page, selector: str) -> str:
    return page.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")


def ask(page: Page, text: str) -> None:
    set_value(page, "prompt", text)
    page.evaluate("document.getElementById('form').requestSubmit()")


def wait_for_answer(page: Page, number: int = 1) -> list[list[str]]:
    """Wait for the answers; return [class, text] of the last one's tokens."""
    done = "document.querySelectorAll('li.assistant[aria-busy=false]')"
    page.wait_for(f"{done}.length === {number} && !document.body.classList.contains('busy')")
    spans = f"[...{done}].at(-1).querySelectorAll('[data-token]')"
    return page.evaluate(f"[...{spans}].map(one => [one.className, one.textContent])")


def text_of(messages: list[dict[str, str]], count: int = 256) -> str:
    tokens = expected_tokens(ServeRequest(tuple(ByteTokenizer().chat(messages)), count))
    return ByteTokenizer().decode(tokens)
