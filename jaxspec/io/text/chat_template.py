"""Render chat messages in a model's chat template, with tool calls in the form that it reads.

Most templates walk a call's arguments as a mapping, transformers' own form. Others write them out
as text, and some tell a call by content that is none, or take ids of nine characters only. Nothing
says which, so the forms of `jaxspec.io.text.tool_calls` are tried.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxspec.io.text.tokenizer_files import import_transformers
from jaxspec.io.text.tool_calls import Form, convert_messages, has_calls, list_calls

# What a caller of a template passes besides its variables; `chat_template` would replace it.
_RESERVED = (
    "add_generation_prompt chat_template continue_final_message conversation documents max_length "
    "messages padding return_assistant_tokens_mask return_dict return_tensors "
    "sanitize_control_tokens tokenize tokenizer_kwargs tools truncation"
)
RESERVED = frozenset(_RESERVED.split())
# What transformers gives to every template, besides special tokens (`…_token`).
_GIVEN = frozenset(("raise_exception", "strftime_now"))
# Tests and filters for variables that nobody may have set.
_ASKING = frozenset(("defined", "undefined", "default", "d"))
_MARKS = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")


class Rendered(NamedTuple):
    """A rendered chat.

    Attributes:
      text: the whole text.
      spans: ranges of characters that the template marks as the assistant's.
    """

    text: str
    spans: tuple[tuple[int, int], ...] = ()


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    *,
    tools: list[dict] | None = None,
    generation_prompt: bool = True,
    marks: bool = False,
) -> Rendered:
    """Render chat messages.

    Args:
      template: Jinja source.
      messages: with `role` and `content`, and `tool_calls` or `tool_call_id` in OpenAI's form or in
        transformers'.
      variables: of the template, special tokens among them.
      tools: JSON schemas of tools.
      generation_prompt: end with the start of an assistant's answer.
      marks: find the ranges inside generation marks.

    Raises:
      ValueError: tool calls that are none, or whose arguments the template cannot read.
      Exception: what the template raises.
    """
    import_transformers()  # before its parts, which would advise to install PyTorch
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(form: Form) -> Rendered:
        texts, ranges = render_jinja_template(
            conversations=[convert_messages(messages, form)],
            tools=tools,
            chat_template=template,
            return_assistant_tokens_mask=marks,
            add_generation_prompt=generation_prompt,
            **variables,
        )
        return Rendered(texts[0], tuple(map(tuple, ranges[0])) if marks else ())

    calls = list_calls(convert_messages(messages, Form()))
    if not calls:
        return render(Form())
    silent = any(not one.get("content") and has_calls(one) for one in messages)
    errors: list[Exception] = []
    for short in (False, True):
        found = _choose(render, short, silent, calls, errors)
        if found is not None:
            return found
    raise _explain(errors[0], calls)


@functools.lru_cache(maxsize=16)
def find_variables(template: str) -> tuple[str, ...]:
    """Find the variables of a template that a caller may set, such as `enable_thinking`, sorted."""
    import jinja2.meta
    from jinja2 import nodes

    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    # Marks of the assistant's texts are transformers' own tags.
    tree = environment.parse(_MARKS.sub("", template))
    # Jinja also finds names that are set in one branch alone: a caller's are asked for before.
    set_here = {one.name for one in tree.find_all(nodes.Name) if one.ctx == "store"}
    tests = (one for one in tree.find_all((nodes.Test, nodes.Filter)) if one.name in _ASKING)
    asked = {one.node.name for one in tests if isinstance(one.node, nodes.Name)}
    found = jinja2.meta.find_undeclared_variables(tree) - (set_here - asked)
    names = found - RESERVED - _GIVEN - environment.globals.keys()
    return tuple(sorted(name for name in names if not name.endswith("_token")))


def _choose(
    render: Callable[[Form], Rendered],
    short: bool,
    silent: bool,
    calls: list[dict[str, Any]],
    errors: list[Exception],
) -> Rendered | None:
    """Render with arguments as a mapping, or as text if the template writes them as they are."""

    def attempt(form: Form) -> Rendered | None:
        try:
            return render(form)
        except Exception as error:  # templates raise anything
            errors.append(error)
            return None

    def with_content(form: Form) -> Rendered | None:
        empty = attempt(form)
        none = attempt(form._replace(none=True)) if silent else None
        if empty is None or none is None:
            return none if empty is None else empty
        # A template that does not ask whether there is content writes "None".
        return empty if none.text.count("None") > empty.text.count("None") else none

    mapping = with_content(Form(short=short))
    # Python's text of a mapping, which a template for JSON text writes.
    written = [repr(call["arguments"]) for call in calls if isinstance(call["arguments"], dict)]
    if mapping is not None and not any(one in mapping.text for one in written):
        return mapping
    text = with_content(Form(text=True, short=short))
    if mapping is None or text is None:
        return text if mapping is None else mapping
    fewer = any(text.text.count(one) < mapping.text.count(one) for one in written)
    return text if fewer else mapping


def _explain(error: Exception, calls: list[dict[str, Any]]) -> Exception:
    """Return what to raise where no form can be rendered."""
    wrong = [call for call in calls if not isinstance(call["arguments"], dict)]
    if not wrong:
        return error
    return ValueError(
        f"the arguments of a call of {wrong[0].get('name')!r} are no JSON object, and the chat "
        f"template cannot read them as text ({error})"
    )
