"""The Markdown of the chat page, in a headless Chromium."""

import json
import random

import pytest
from chat_page import needs_browser

http_server = pytest.importorskip("http_server")
pytestmark = needs_browser

# Draws a text whose tokens are `size` characters long, all at once or token by token.
SCRIPT = """
const { AnswerText } = await import(location.origin + "/text.js");
window.draw = (source, size, whole) => {
  const text = new AnswerText(document.createElement("div"));
  for (let i = 0; i < source.length; i += size) {
    text.add({ text: source.slice(i, i + size), drafted: i % 2 === 1, token: i / size });
    if (!whole) text.draw();
  }
  text.draw();
  return text.element;
};
window.outline = (element) => element.innerHTML
  .replace(/<\\/?span[^>]*>|<button[^>]*>Copy<\\/button>| tabindex="0"/g, "");
"""


@pytest.fixture(scope="module")
def page(tab):
    with http_server.running() as server:
        tab.call("Page.navigate", url=server.url)
        tab.wait_for("document.readyState === 'complete'")
        tab.evaluate(f"(async () => {{ {SCRIPT} }})()")
        yield tab
        tab.call("Page.navigate", url="about:blank")


def outline(page, source: str, size: int = 3, whole: bool = True) -> str:
    """HTML of a text, without the spans of tokens."""
    drawn = f"draw({json.dumps(source)}, {size}, {json.dumps(whole)})"
    return page.evaluate(f"outline({drawn})")


def code(text: str, language: str = "code") -> str:
    return (
        f'<div class="code"><div class="bar">{language}</div><pre><code>{text}</code></pre></div>'
    )


def link(href: str, text: str) -> str:
    rel = "noopener noreferrer nofollow"
    return f'<a href="{href}" title="{href}" target="_blank" rel="{rel}">{text}</a>'


SENTENCE = "see {}. ({})".format(
    link("https://a.b/c_d", "https://a.b/c_d"), link("http://e.f", "http://e.f")
)
TWICE = "{0} {0}".format(link("https://a.b", "https://a.b"))
INLINE = [
    ("a *b* **c** ***d***", "a <em>b</em> <strong>c</strong> <em><strong>d</strong></em>"),
    (
        "_a_ __b__ snake_case_name 2*3*4",
        "<em>a</em> <strong>b</strong> snake_case_name 2<em>3</em>4",
    ),
    ("2 * 3 * 4 and **open", "2 * 3 * 4 and **open"),
    ("**a *b* c** *d", "<strong>a <em>b</em> c</strong> *d"),
    (r"**a_** _b_ \``", "<strong>a_</strong> <em>b</em> ``"),
    ("~~gone~~ ~5", "<del>gone</del> ~5"),
    ("`a*b*` ``c`d`` `open", "<code>a*b*</code> <code>c`d</code> `open"),
    (r"\*a\* \``b` C:\dir", r"*a* `<code>b</code> C:\dir"),
    ("[a **b**](https://c.d/e_(f)_g)", link("https://c.d/e_(f)_g", "a <strong>b</strong>")),
    ('[a](http://b.c "title")', link("http://b.c", "a")),
    ("see https://a.b/c_d. (http://e.f)", SENTENCE),
    ("<https://a.b> [https://a.b](https://a.b)", TWICE),
    ("[a][b] [c] [d](e) a[0](1)", "[a][b] [c] [d](e) a[0](1)"),
    ("1 < 2 & 3 > 2 &amp; <b>", "1 &lt; 2 &amp; 3 &gt; 2 &amp;amp; &lt;b&gt;"),
]


@pytest.mark.parametrize(("source", "html"), INLINE)
def test_inline(page, source, html):
    assert outline(page, source) == f"<p>{html}</p>"


LIST = '<ol start="1"><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ol>'
LOOSE = '<ul class="loose"><li><p>a</p><p>b</p></li><li><p>c</p></li></ul>'
WITH_CODE = "<ul><li><p>a</p>{}</li><li><p>d</p></li></ul>".format(code("b\n c"))
TWO_LISTS = '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol><ul><li><p>c</p></li></ul>'
QUOTE = (
    "<blockquote><p>a</p><blockquote><p>b</p></blockquote><ul><li><p>c</p></li></ul></blockquote>"
    "<p>d</p>"
)
TABLE = (
    '<p>a</p><div class="wide"><table><tr><th class="start">x</th><th class="center">y</th></tr>'
    '<tr><td class="start">1|2</td><td class="center"><code>3</code></td></tr>'
    '<tr><td class="start">4</td></tr></table></div><p>b</p>'
)
BLOCKS = [
    ("# A\n## B #\ntext\n#c", "<h3>A</h3><h4>B</h4><p>text\n#c</p>"),
    ("A\n===\nB\n---\n\n---\n* * *", "<h3>A</h3><h4>B</h4><hr><hr>"),
    ("a\n b\n\nc", "<p>a\n b</p><p>c</p>"),
    ("```py\nx = *1*\n\n  y\n```\nz", code("x = *1*\n\n  y", "py") + "<p>z</p>"),
    ("~~~\n```\n~~~~", code("```")),
    ("a\n```\nb\n``", "<p>a</p>" + code("b\n``")),
    ("```a``` b", "<p><code>a</code> b</p>"),
    ("1. a\n   - b\n2. c", LIST),
    ("1. a\n  - b\n2. c", LIST),
    ("- a\n\n  b\n- c", LOOSE),
    ("- a\nb\n\nc", "<ul><li><p>a\nb</p></li></ul><p>c</p>"),
    ("- a\n  ```\n  b\n   c\n  ```\n- d", WITH_CODE),
    ("3. a\n4. b\n- c", TWO_LISTS),
    ("The answer is\n14. It was\n**b**", "<p>The answer is\n14. It was\n<strong>b</strong></p>"),
    ("> a\n> > b\n> - c\n\nd", QUOTE),
    ("a\n| x | y |\n|---|:-:|\n| 1\\|2 | `3` |\n| 4 |\n\nb", TABLE),
    ("a | b\n- c", "<p>a | b</p><ul><li><p>c</p></li></ul>"),
    ("    x = 1", "<p>x = 1</p>"),
    ("", ""),
]


@pytest.mark.parametrize(("source", "html"), BLOCKS)
def test_blocks(page, source, html):
    assert outline(page, source).replace(' class=""', "") == html


HOSTILE = [
    "<img src=x onerror=alert(1)><script>alert(1)</script>",
    "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](java\nscript:alert(1))",
    "[a](data:text/html,<script>alert(1)</script>) [b](vbscript:x) [c](file:///etc/passwd)",
    "![a](https://evil.example/?secret) ![b](javascript:alert(1))",
    '[a](https://b.c" onclick="alert(1)) [d](https://e.f "onclick=alert(1)")',
    '<javascript:alert(1)> <https://a.b" onclick=alert(1)>',
    "```<script>alert(1)</script>\n<style>*{display:none}</style>\n```",
    "# <h1 onclick=alert(1)>\n\n| <td> |\n| --- |\n| <iframe src=//a.b> |",
    "[\u0001a](\u0001javascript:alert(1)) [b](//evil.example) [c](\\\\evil.example)",
]


@pytest.mark.parametrize("source", HOSTILE)
def test_nothing_that_a_model_writes_is_markup(page, source):
    elements = f"[...draw({json.dumps(source)}, 3, true).querySelectorAll('*')]"
    found = page.evaluate(
        f"{elements}.map(one => [one.localName, one.getAttributeNames(), one.getAttribute('href')])"
    )
    known = {
        "p",
        "a",
        "h3",
        "span",
        "em",
        "code",
        "pre",
        "div",
        "button",
        "table",
        "tr",
        "th",
        "td",
    }
    harmless = {"class", "data-token", "href", "title", "target", "rel", "tabindex", "type"}
    for name, attributes, href in found:
        assert name in known and harmless.issuperset(attributes)
        assert href is None or href.startswith(("https://", "http://"))


PARTS = [
    *(
        "a",
        "b ",
        " ",
        "\n",
        "\n\n",
        "*",
        "**",
        "_",
        "`",
        "```",
        "\n```\n",
        "~~",
        "[",
        "](",
        "https://a.b",
    ),
    *(
        ")",
        "\\",
        "\n- ",
        "\n  - ",
        "\n1. ",
        "\n   ",
        "\n> ",
        "> ",
        "\n# ",
        "\n---\n",
        "|",
        "\n|---|---|\n",
    ),
    *("é", "😀", "\t", "<", "\n===", "===", "    "),
]


def test_a_text_that_grows_looks_like_a_whole_one(page):
    """Also where a fence, a list or an emphasis is unfinished; no character is lost or moved."""
    draw = random.Random(3)
    texts = ["".join(draw.choices(PARTS, k=draw.randint(1, 40))) for _ in range(300)]
    texts += [source for source, _ in INLINE + BLOCKS]
    wrong = page.evaluate(f"""{json.dumps(texts)}.filter((text) => {{
      const grown = draw(text, 2, false), spans = [...grown.querySelectorAll("[data-token]")];
      let last = -1;
      const placed = spans.every((span) => {{
        const token = Number(span.dataset.token), known = text.slice(2 * token, 2 * token + 2);
        const ok = token >= last && known.includes(span.textContent.at(0));
        last = token;
        return ok;
      }});
      return !placed || grown.innerHTML !== draw(text, 2, true).innerHTML;
    }})""")
    assert wrong == []


def test_each_character_is_in_the_span_of_its_token(page):
    spans = "[...draw('a **bold** `co` b', 3, true).querySelectorAll('span')]"
    found = page.evaluate(
        f"{spans}.map(one => [one.dataset.token, one.className, one.textContent])"
    )
    assert found == [
        *(["0", "own", "a "], ["1", "drafted", "bo"], ["2", "own", "ld"]),
        *(["3", "drafted", " "], ["4", "own", "co"], ["5", "drafted", " b"]),
    ]


@pytest.mark.parametrize(
    "part", ["*", "_a", "[", "](", "`", "``` ", "> ", "- ", "|", "#", "~~", "<", "("]
)
def test_what_is_repeated_takes_no_longer(page, part):
    """A text of 40,000 characters; time that grew with the square would be a minute."""
    drawn = f"draw({json.dumps(part)}.repeat({40000 // len(part)}), 500, true)"
    script = f"const begin = performance.now(); {drawn}; return performance.now() - begin;"
    assert page.evaluate(f"(() => {{ {script} }})()") < 5000


def test_code_is_copied_without_its_fence(page):
    page.evaluate("""(() => {
      const element = draw("```py\\na = 1\\n\\nb\\n```", 3, true);
      navigator.clipboard.writeText = async (text) => { window.copied = text; };
      element.querySelector("button").click();
      window.copying = element;
    })()""")
    assert page.evaluate("copied") == "a = 1\n\nb"
    page.wait_for("copying.querySelector('button').textContent === 'Copied'")


def test_without_a_clipboard_the_selection_is_copied(page):
    """Browsers keep the clipboard from pages that come by plain HTTP from other machines."""
    page.evaluate("""(() => {
      navigator.clipboard.writeText = async () => { throw new Error("not here"); };
      document.execCommand = (name) => {
        window.copied = [name, document.activeElement.value];
      };
      draw("```\\nc\\n```", 3, true).querySelector("button").click();
    })()""")
    page.wait_for("copied[0] === 'copy'")
    assert page.evaluate("copied[1]") == "c"
