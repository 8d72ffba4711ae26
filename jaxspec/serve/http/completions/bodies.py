"""What bodies of requests have in common, and how the schema of the endpoint describes them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from jaxspec.core.runtime.near_miss import find_near_miss
from jaxspec.serve.bias import BIASES, LARGEST

MOST_STOPS = 4  # OpenAI's limit
MOST_STOP_LENGTH = 1000  # the engine compares each beginning of a stop with the end of a text

# What validators accept, for those who read the schema.
_TEXT = {"type": "string", "minLength": 1}
_STOP = _TEXT | {"maxLength": MOST_STOP_LENGTH}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_SEVERAL = ({"type": "array", "items": one, "minItems": 1} for one in (_TEXT, _IDS))
PROMPT = {"anyOf": [_TEXT, _IDS, *_SEVERAL]}
STOPS = {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MOST_STOPS}]}
BIASED = {
    "type": "object",
    "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"},
    "additionalProperties": {"type": "number", "minimum": -LARGEST, "maximum": LARGEST},
    "maxProperties": BIASES,
}
_PART = {
    "type": "object",
    "properties": {"type": {"description": "`text`"}, "text": {"type": "string"}},
    "required": ["text"],
}
_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]},
    },
    "required": ["role", "content"],
}


def _condition(name: str, asks: dict[str, Any], other: str, must: dict[str, Any]) -> dict[str, Any]:
    """Say that a parameter that asks for something needs a value of another one."""
    return {
        "if": {"properties": {name: asks}, "required": [name]},
        "then": {"properties": {other: must}, "required": [other]},
    }


_SOME = {"type": "array", "minItems": 1}
CONDITIONS = (
    _condition("stream_options", {"type": "object"}, "stream", {"const": True}),
    _condition("top_logprobs", {"type": "integer", "minimum": 1}, "logprobs", {"const": True}),
    _condition("tools", _SOME, "tool_choice", {"const": "none"}),
    _condition("functions", _SOME, "function_call", {"const": "none"}),
)

Messages = Annotated[
    list[dict[str, Any]],
    Field(min_length=1),
    FailFast(),
    WithJsonSchema({"type": "array", "items": _MESSAGE, "minItems": 1}),
]


class Closed(BaseModel):
    """A JSON object without other keys, whose values have exactly the types that are written.

    A null is the same as an absent key, and 5.0 the same as 5.
    Validation ends at the first mistake: a list of a million mistakes would take seconds, in which
    no stream goes on.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        kept = {name: _to_whole(value) for name, value in body.items() if value is not None}
        for name in kept:
            if name not in cls.model_fields:
                shown = name[:100].encode(errors="replace").decode()  # half surrogate pairs too
                near = find_near_miss(shown, cls.model_fields)
                hint = "" if near is None else f" Did you mean '{near}'?"
                message = "Unknown parameter: '{param}'." + hint
                raise PydanticCustomError("unknown_parameter", message, {"param": shown})
        return kept

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Say that nulls are as good as absent keys, known or not."""
        schema = handler.resolve_ref_schema(handler(core))
        required, nothing = schema.get("required", ()), {"type": "null"}
        for name, value in schema["properties"].items():
            if name not in required and nothing not in value.get("anyOf", ()):
                schema["properties"][name] = {"anyOf": [value, nothing]}
        schema["additionalProperties"] = nothing
        return schema


def refuse_alone(name: str, needs: str) -> None:
    """Refuse a parameter that is only allowed in some company, such as "with 'stream': true".

    Raises:
      PydanticCustomError: in any case.
    """
    message = f"'{{param}}' is only allowed {needs}."
    raise PydanticCustomError("unsupported_parameter", message, {"param": name})


def _to_whole(value: Any) -> Any:
    """Turn whole numbers, and those in lists, into integers: some languages write them as 5.0."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list) and any(isinstance(one, float | list) for one in value):
        return [_to_whole(one) for one in value]
    return value
