"""/tokenize and its like, in vLLM's form: token ids of a text or a chat, their text, the tokenizer."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator
from pydantic_core import PydanticCustomError

from jaxspec.serve.http.completions.bodies import Closed, Messages, refuse_alone
from jaxspec.serve.http.completions.complete import check_model
from jaxspec.serve.http.openapi import REFUSALS
from jaxspec.serve.http.service import Service

# Parameters that only messages have.
_OF_CHATS = ("add_generation_prompt", "chat_template_kwargs")


# For those who read the schema: the body is of one kind or the other.
_NOTHING = {"type": "null"}
_KINDS = [
    {
        "properties": {"prompt": {"type": "string"}}
        | dict.fromkeys(("messages", *_OF_CHATS), _NOTHING),
        "required": ["prompt"],
    },
    {
        "properties": {
            "messages": {"type": "array"},
            "prompt": _NOTHING,
            "add_special_tokens": {"enum": [False, None]},
        },
        "required": ["messages"],
    },
]


class TokenizeParameters(Closed):
    """Body of /tokenize.

    Attributes:
      prompt: a text; or else
      messages: with `role` and `content`.
      add_special_tokens: with the special tokens that the model expects before a text; templates
        add their own.
      add_generation_prompt: end with what begins an answer to the messages; the default is true.
      chat_template_kwargs: variables of the model's chat template, such as enable_thinking.
      return_token_strs: give the names of the tokens in the vocabulary too.
    """

    model_config = ConfigDict(json_schema_extra={"oneOf": _KINDS})

    model: str | None = None
    prompt: str | None = None
    messages: Messages = []
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check_together(self) -> TokenizeParameters:
        if (self.prompt is None) == (not self.messages):
            message = "Give either '{param}' or 'messages'."
            raise PydanticCustomError("invalid_value", message, {"param": "prompt"})
        for name in () if self.messages else _OF_CHATS:
            if getattr(self, name) is not None:
                refuse_alone(name, "with 'messages'")
        if self.messages and self.add_special_tokens:
            refuse_alone("add_special_tokens", "with 'prompt': the chat template adds its own")
        return self


class DetokenizeParameters(Closed):
    """Body of /detokenize.

    Attributes:
      tokens: token ids.
    """

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], FailFast()]


class TokenizeAnswer(BaseModel):
    """Answer of /tokenize.

    Attributes:
      count: of the tokens.
      max_model_len: most tokens of a prompt together with its answer.
      tokens: token ids.
      token_strs: names of the tokens in the vocabulary, if they were asked for.
    """

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeAnswer(BaseModel):
    """Answer of /detokenize.

    Attributes:
      prompt: the text of the tokens, special ones included.
    """

    prompt: str


def add_tokenization(app: FastAPI, service: Service) -> None:
    """Add the routes."""
    translator = service.translator

    @app.post("/tokenize", responses=REFUSALS, summary="Tokens of a text or a chat")
    async def tokenize(given: TokenizeParameters) -> TokenizeAnswer:
        check_model(service, given.model)
        if given.messages:
            variables = given.chat_template_kwargs or {}
            answer = given.add_generation_prompt is not False
            ids = await translator.encode_chat(given.messages, variables, answer)
        else:
            assert given.prompt is not None, "the body has one of them"
            ids = await translator.encode(given.prompt, given.add_special_tokens is not False)
        names = None
        if given.return_token_strs:
            tokenizer = translator.require_tokenizer("prompt")
            names = [tokenizer.name_token(id) or "" for id in ids]
        room = service.settings.room
        return TokenizeAnswer(count=len(ids), max_model_len=room, tokens=ids, token_strs=names)

    @app.get("/tokenizer_info", responses=REFUSALS, summary="Special tokens and the chat template")
    async def info() -> dict[str, Any]:
        return translator.require_tokenizer("tokens").info

    @app.post("/detokenize", responses=REFUSALS, summary="Text of tokens")
    async def detokenize(given: DetokenizeParameters) -> DetokenizeAnswer:
        check_model(service, given.model)
        return DetokenizeAnswer(prompt=await translator.decode(given.tokens))
