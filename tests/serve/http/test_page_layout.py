"""The chat page on two screens, with a keyboard, for screen readers, in two colour schemes."""

import re

import fake_engine
import pytest
from chat_page import ask, click, needs_browser, set_value, text_in, wait_for_answer

SIZES = {"desk": (1280, 800), "phone": (390, 844)}


def set_size(page, name: str) -> None:
    width, height = SIZES[name]
    page.call(
        "Emulation.setDeviceMetricsOverride",
        **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": name == "phone"},
    )


OUTSIDE = """[...document.querySelectorAll("body *")].filter((one) => {
  const box = one.getBoundingClientRect();
  const scrolled = one.closest("pre, .wide, .unseen, svg") !== null && !one.matches("pre, .wide");
  const shown = one.checkVisibility() && box.width > 0;
  return shown && !scrolled && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map((one) => one.outerHTML.slice(0, 80))"""
LONG = (
    b"# "
    + b"word" * 40
    + b"\n```\n"
    + b"x = 1; " * 40
    + b"\n```\n| a | b |\n|--|--|\n|"
    + b"c" * 80
    + b"|d|\n"
)


@needs_browser
@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_cut_off(page, server, monkeypatch, size):
    """Nothing but code, tables and trees, which scroll, is wider than the window."""
    set_size(page, size)
    server.engine.per_visit = 9  # a tree of ten tokens, one below the other
    monkeypatch.setattr(fake_engine, "expected_tokens", lambda request: list(LONG))

    def check() -> None:
        assert page.evaluate(OUTSIDE) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")

    check()
    ask(page, "long" * 50)
    wait_for_answer(page)
    check()
    click(page, ".text .drafted")
    assert page.evaluate("document.querySelectorAll('#tree .node').length") == 11
    assert page.evaluate(
        "(one => one.scrollWidth <= one.clientWidth)(document.getElementById('tree'))"
    )
    click(page, "summary")
    click(page, "button.compare")
    page.wait_for("document.querySelector('.comparison [role=status]')?.textContent")
    check()
    assert page.evaluate(
        "document.getElementById('send').getBoundingClientRect().bottom <= innerHeight"
    )
    set_value(page, "tokens", 9999)
    ask(page, "Hi")
    page.wait_for("document.querySelector('li.error') !== null")
    check()
    page.errors.clear()  # the browser notes the status


@needs_browser
def test_every_control_has_a_name(page):
    set_value(page, "tokens", 33)
    ask(page, "Hi")
    wait_for_answer(page)
    click(page, ".text .drafted")
    click(page, "summary")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    controls = {"button", "textbox", "checkbox", "spinbutton", "slider"}
    found = [one for one in nodes if one.get("role", {}).get("value") in controls]
    assert controls == {one["role"]["value"] for one in found}
    assert all(re.search(r"[a-z]", one["name"]["value"]) for one in found)
    live = "document.getElementById('messages').getAttribute('aria-live')"
    assert page.evaluate(live) == "polite" and text_in(page, "#status") == "Done"


CONTRAST = """(() => {
  const light = (color) => {
    const shares = color.match(/[\\d.]+/g).slice(0, 3).map((one) => one / 255);
    const [r, g, b] = shares.map(
      (one) => (one <= 0.04 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const back = (one) => {
    const color = getComputedStyle(one).backgroundColor;
    return color === "rgba(0, 0, 0, 0)" ? back(one.parentElement) : color;
  };
  const names = ".text .drafted, .text .own, .figures li, #send, #warning, dt, .error";
  return [...document.querySelectorAll(names)].map((one) => {
    const [a, b] = [light(getComputedStyle(one).color), light(back(one))].sort((x, y) => y - x);
    return [one.className || one.id, (a + 0.05) / (b + 0.05)];
  });
})()"""


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_background(page, scheme):
    """By 4.5 to 1 at least, as WCAG asks."""
    page.call(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
    )
    set_value(page, "tokens", 33)
    ask(page, "Hi")
    wait_for_answer(page)
    set_value(page, "tokens", 9999)
    ask(page, "Hi")
    page.wait_for("document.querySelector('li.error') !== null")
    found = page.evaluate(CONTRAST)
    page.call("Emulation.setEmulatedMedia", features=[])
    assert {"drafted", "own", "error", "send"} <= {name for name, _ in found}
    assert [one for one in found if one[1] < 4.5] == []
    page.errors.clear()  # the browser notes the status
