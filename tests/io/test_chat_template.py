"""Histories with tool calls in OpenAI's form, in templates that read them differently."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from jaxspec.io.hub import ZOO
from jaxspec.io.text.chat_template import find_variables, render_chat
from jaxspec.io.text.tokenizer import Tokenizer

START, END = "{% for m in messages %}", "{% endfor %}"
CALLS = "[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
# What published templates do with `c.function.arguments`.
WALKS = (
    START
    + CALLS
    + (
        "<{{ c.function.name }}{% for k, v in c.function.arguments|items %} {{ k }}={{ v }}{% "
        "endfor %}>"
        "{% endfor %}" + END
    )
)
DUMPS = START + CALLS + "<{{ c.function | tojson }}>{% endfor %}" + END
QWEN3 = (
    START
    + CALLS
    + (
        "<{% if c.function %}{% set c = c.function %}{% endif %}{{ c.name }} "
        "{% if c.arguments is string %}{{ c.arguments }}{% else %}{{ c.arguments | tojson }}{% "
        "endif %}>"
        "{% endfor %}" + END
    )
)
WRITES = START + CALLS + "<{{ c.function.name }} {{ c.function.arguments }}>{% endfor %}" + END
ADDS = (
    START
    + CALLS
    + "{{ '<' + c.function.name + ' ' + c.function.arguments + '>' }}{% endfor %}"
    + END
)
SLICES = (
    START
    + CALLS
    + "{{ '<' ~ c.function.name ~ ' ' ~ c.function.arguments.strip() }}>{% endfor %}"
    + END
)

QUESTION = {"role": "user", "content": "Weather?"}
WANTED = {"city": "Łódź", "days": 2}
MAPPING, TEXT = '{"city": "Łódź", "days": 2}', '{"city":"Łódź", "days":2}'


def history(arguments, **message):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": arguments},
    }
    asked = {"role": "assistant", "content": None, "tool_calls": [call]} | message
    return [QUESTION, asked, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]


def render(template, messages, **options):
    return render_chat(template, messages, {}, generation_prompt=False, **options).text


@pytest.mark.parametrize(
    ("template", "call"),
    [
        (WALKS, "<weather city=Łódź days=2>"),
        (DUMPS, f'<{{"name": "weather", "arguments": {MAPPING}}}>'),
        (QWEN3, f"<weather {MAPPING}>"),
        (WRITES, f"<weather {TEXT}>"),
        (ADDS, f"<weather {TEXT}>"),
        (SLICES, f"<weather {TEXT}>"),
    ],
)
def test_arguments_are_given_as_the_template_reads_them(template, call):
    expected = f"[user]Weather?[assistant]{call}[tool]rain"
    assert render(template, history(TEXT)) == expected
    # The mapping gives the same, but for the spaces of JSON text that is no longer known.
    assert render(template, history(WANTED)) == expected.replace(TEXT, MAPPING)
    assert render(template, history(json.dumps(TEXT))).replace("\\", "").count("Łódź") == 1


@pytest.mark.parametrize("arguments", ["", " ", "{}", "null", None, {}])
@pytest.mark.parametrize("template", [WALKS, DUMPS, QWEN3, WRITES, ADDS, SLICES])
def test_no_arguments(template, arguments):
    call = {WALKS: "weather", DUMPS: '{"name": "weather", "arguments": {}}'}.get(
        template, "weather {}"
    )
    assert render(template, history(arguments)) == f"[user]Weather?[assistant]<{call}>[tool]rain"
    messages = history("")
    del messages[1]["tool_calls"][0]["function"]["arguments"], messages[1]["content"]
    assert render(template, messages) == f"[user]Weather?[assistant]<{call}>[tool]rain"


@pytest.mark.parametrize("broken", ['{"city": "Łó', "rain", "[1, 2]", "3"])
def test_arguments_that_are_no_json_object(broken):
    """A model wrote them; a template that takes text can still show them."""
    for template in (QWEN3, WRITES, ADDS, SLICES):
        assert f"<weather {broken}>" in render(template, history(broken))
    with pytest.raises(ValueError, match="arguments of a call of 'weather' are no JSON object"):
        render(WALKS, history(broken))


def test_a_user_who_writes_pythons_text_changes_nothing():
    messages = [{"role": "user", "content": repr(WANTED)}, *history(TEXT)]
    assert render(DUMPS, messages).endswith(f'"arguments": {MAPPING}}}>[tool]rain')


def test_several_calls_and_results_without_ids_or_names():
    """Results follow the order of calls where no id says otherwise; names come from the calls."""
    template = (
        START
        + CALLS
        + "<{{ c.function.name }}>{% endfor %}"
        + ("{% if m.role == 'tool' %}({{ '' + m.name }}){% endif %}" + END)
    )
    calls = [
        {"id": f"id{name}", "function": {"name": name, "arguments": "{}"}} for name in ("a", "b")
    ]
    messages = [QUESTION, {"role": "assistant", "tool_calls": calls}]
    by_id = [{"role": "tool", "tool_call_id": f"id{name}", "content": name} for name in "ba"]
    in_order = [{"role": "tool", "content": name} for name in "ab"]
    asked = "[user]Weather?[assistant]<a><b>"
    assert render(template, messages + by_id) == asked + "[tool]b(b)[tool]a(a)"
    assert render(template, messages + in_order) == asked + "[tool]a(a)[tool]b(b)"
    assert render(template, messages + [by_id[0] | {"name": "own"}]) == asked + "[tool]b(own)"
    for call in calls:
        del call["id"]
    assert render(template, messages + by_id) == asked + "[tool]b(a)[tool]a(b)"


def test_functions_of_the_older_api_are_tools():
    messages = [
        QUESTION,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": TEXT}},
        {"role": "function", "name": "f", "content": [{"type": "text", "text": "rain"}]},
        {"role": "assistant", "content": "Rain.", "tool_calls": [], "function_call": None},
    ]
    assert render(WALKS, messages) == (
        "[user]Weather?[assistant]<f city=Łódź days=2>[tool]rain[assistant]Rain."
    )


def test_calls_without_content():
    """DeepSeek's template tells a call by content that is none; others write what is there."""
    by_none = START + (
        "{% if m.role == 'assistant' and m.content is none %}"
        "{% for c in m.tool_calls %}<{{ c.function.name }}>{% endfor %}"
        "{% elif m.content is not none %}[{{ m.content }}]{% endif %}" + END
    )
    for content in (None, ""):
        assert render(by_none, history(TEXT, content=content)) == "[Weather?]<weather>[rain]"
        assert "None" not in render(WALKS, history(TEXT, content=content))
        adds = START + "{{ '[' + m.content + ']' }}" + END
        assert render(adds, history(TEXT, content=content)) == "[Weather?][][rain]"


def test_ids_of_nine_characters():
    """Mistral's templates refuse others; the same id stays the same."""
    template = START + (
        "{% for c in m.tool_calls or [] %}{% if c.id is not defined or c.id|length != 9 %}"
        "{{ raise_exception('ids have nine characters') }}{% endif %}<{{ c.id }}>{% endfor %}"
        "{% if m.role == 'tool' %}[{{ m.tool_call_id }}]{% endif %}" + END
    )
    made = render(template, history(TEXT))
    assert made[1:10].isalnum() and made == f"<{made[1:10]}>[{made[1:10]}]"
    messages = history(TEXT)
    messages[1]["tool_calls"][0]["id"] = messages[2]["tool_call_id"] = "abcdefgh1"
    assert render(template, messages) == "<abcdefgh1>[abcdefgh1]"
    del messages[1]["tool_calls"][0]["id"], messages[2]["tool_call_id"]
    made = render(template, messages)
    assert made == f"<{made[1:10]}>[{made[1:10]}]"


def test_a_bare_function_is_a_call_and_other_shapes_are_refused():
    messages = history(TEXT, tool_calls=[{"name": "weather", "arguments": WANTED}])
    assert "<weather city=Łódź days=2>" in render(WALKS, messages)
    kinds = START + "{% for c in m.tool_calls or [] %}{{ '<' + c.type + '>' }}{% endfor %}" + END
    for call in messages[1]["tool_calls"][0], {"function": {"name": "weather"}}:
        assert render(kinds, history(TEXT, tool_calls=[call])) == "<function>"
    for wrong in ("weather", [1], [{"function": "weather"}]):
        with pytest.raises(ValueError, match="message 2: tool_calls is not a list of calls"):
            render(WALKS, history(TEXT, tool_calls=wrong))


def test_a_models_tokenizer_renders_them(tmp_path):
    """`decode` with messages, and the endpoint, go through it."""
    config = json.loads((ZOO / "mini" / "tokenizer_config.json").read_text())
    shutil.copy(ZOO / "mini" / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": WALKS}))
    tokenizer = Tokenizer(tmp_path)
    messages = history(TEXT)
    del messages[1]["content"]
    expected = "[user]Weather?[assistant]<weather city=Łódź days=2>[tool]rain"
    assert tokenizer.decode(tokenizer.chat(messages)) == expected
    assert tokenizer.chat(messages) == tokenizer.chat(history(WANTED))


def test_what_the_template_says_is_raised():
    single = START + (
        "{% if m.tool_calls and m.tool_calls|length != 1 %}"
        "{{ raise_exception('one call at a time') }}{% endif %}" + END
    )
    messages = history(TEXT)
    messages[1]["tool_calls"] *= 2
    with pytest.raises(Exception, match="one call at a time"):
        render(single, messages)
    assert messages[1]["content"] is None  # and what was given is as it was


def test_variables_that_a_caller_may_set():
    """Those that a template sets itself if nobody did, and none of Jinja's or transformers'."""
    qwen = Path(__file__).parents[1] / "training/templates/qwen3.jinja"
    assert find_variables(qwen.read_text()) == ("enable_thinking",)
    template = (
        "{% set ns = namespace(at=1) %}{{ bos_token }}{{ strftime_now('%d') }}{{ documents }}"
        "{% if not date_string is defined %}{% set date_string = 'x' %}{% endif %}{{ date_string }}"
        "{% for m in messages %}{% generation %}{{ m.content }}{%- endgeneration -%}"
        "{% if m.role == 'x' %}{{ raise_exception(thinking) }}{% continue %}{% endif %}{% endfor %}"
    )
    assert find_variables(template) == ("date_string", "thinking")
    assert find_variables("{{ messages }}") == ()
