"""The shapes of the OpenAI-compatible interface: requests, and errors as clients of OpenAI and vLLM expect them.

A field that this server cannot honour is refused by name, never ignored: a client that asks for `tools` must not get
an answer that was made without them, so a chat template that has no place for them refuses them too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from starlette.requests import ClientDisconnect, Request

from trainyard.errors import TrainyardError
from trainyard.json_types import JsonObject

MAX_BODY_BYTES = 4 << 20
MAX_STOPS, MAX_CHOICES, MAX_TOOLS = 16, 8, 128
"""Choices are computed one after another."""
MAX_PROMPTS = 256
MAX_NAME = 256
MAX_BIASES = 1024
TYPE_OF_UNION = re.compile(r"str|int|float|bool|(list|dict)\[.*\]")
"""A part of a location that names a type among several, not a field."""
Parsed = TypeVar("Parsed", bound="ApiRequest")


class ApiError(Exception):
    """An answer other than 200: HTTP status, message, OpenAI's error type and the field that caused it."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param

    def body(self) -> JsonObject:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


def not_found_error(model: str, served: Iterable[str]) -> ApiError:
    names = ", ".join(f"`{name}`" for name in served)
    return ApiError(404, f"The model `{model}` does not exist. Served are: {names}.", "NotFoundError", "model")


def from_trainyard(error: TrainyardError) -> ApiError:
    return ApiError(400, str(error), "BadRequestError")


async def json_body(request: Request) -> bytes:
    """The body, at most 4 MiB. A form, which any web page can send to loopback, is refused by its content type."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "Send the body as application/json.", "UnsupportedMediaType")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise ApiError(413, f"The body is longer than {MAX_BODY_BYTES:,} bytes.", "RequestTooLarge")
    except ClientDisconnect as error:
        raise ApiError(408, "The connection ended before the body did.", "RequestTimeout") from error
    return bytes(body)


def check_name(name: str) -> str:
    """Return a name that may be shown and logged. Raises `ValueError`."""
    if len(name) > MAX_NAME or not name.isprintable() or name != name.strip():
        raise ValueError(f"a name takes at most {MAX_NAME} printable characters, without spaces at its ends")
    return name


class ApiRequest(BaseModel):
    """Base class of request bodies and their parts: null means that a field was not given, whatever its name."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def leave_out_nulls(cls, body: object) -> object:
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if value is not None or name == "content"}


class TextPart(ApiRequest):
    type: Literal["text"]
    text: str


class CalledFunction(ApiRequest):
    name: str = Field(min_length=1)
    arguments: str | JsonObject = "{}"
    """JSON, as the model wrote it, or an object. A call without arguments may leave it out."""


class ToolCall(ApiRequest):
    id: str | None = None
    """Name in the result of this call; rows of a training may have none."""
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(ApiRequest):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """Thoughts of the assistant before its answer, as the rows of a training have it."""
    reasoning: str | None = None
    """The same under the name that newer servers give it."""

    @model_validator(mode="before")
    @classmethod
    def leave_out_empty(cls, body: object) -> object:
        """A message that calls tools may leave its content out, and any may repeat what an answer left empty."""
        if not isinstance(body, dict):
            return body
        content = {"content": None} if body.get("tool_calls") else {}
        empty = [name for name, value in body.items() if name not in cls.model_fields and value in ("", [], {})]
        return {**content, **{name: value for name, value in body.items() if name not in empty}}

    @model_validator(mode="after")
    def fits_its_role(self) -> ChatMessage:
        if self.content is None and not self.tool_calls:
            raise ValueError("content is null; only a message with tool_calls has none")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls belong to an assistant's message")
        if self.thoughts and self.role != "assistant":
            raise ValueError("reasoning_content belongs to an assistant's message")
        if self.reasoning and self.reasoning_content and self.reasoning != self.reasoning_content:
            raise ValueError("reasoning and reasoning_content say different things")
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError("tool_call_id belongs to a tool's message")
        return self

    @property
    def thoughts(self) -> str | None:
        return self.reasoning_content or self.reasoning

    def for_template(self) -> JsonObject:
        parts = self.content if isinstance(self.content, list) else []
        text = "".join(part.text for part in parts) if parts else self.content or ""
        turn: dict[str, object] = {"role": "system" if self.role == "developer" else self.role, "content": text}
        if self.tool_calls:
            turn["tool_calls"] = [call.model_dump(exclude_none=True) for call in self.tool_calls]
        if self.thoughts:
            turn["reasoning_content"] = self.thoughts
        return turn | {key: value for key in ("name", "tool_call_id") if (value := getattr(self, key)) is not None}


class Function(ApiRequest):
    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    parameters: JsonObject = Field(default_factory=dict)
    strict: Literal[False] | None = None
    """A call is not bound by the schema here."""


class Tool(ApiRequest):
    type: Literal["function"]
    function: Function

    def for_template(self) -> JsonObject:
        return {"type": self.type, "function": self.function.model_dump(exclude_none=True)}


class JsonSchemaSpec(ApiRequest):
    name: str = "schema"
    description: str | None = None
    schema_: dict[str, object] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(ApiRequest):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaSpec | None = None

    def schema_to_enforce(self) -> dict[str, object] | None:
        if self.type == "text":
            return None
        if self.type == "json_object":
            return {"type": "object"}
        if self.json_schema is None:
            raise ApiError(400, "response_format.json_schema is missing.", param="response_format")
        return self.json_schema.schema_


class StreamOptions(ApiRequest):
    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class NeutralFields(ApiRequest):
    """Fields that have no effect here: each is taken in its neutral value only, those that name the caller in any."""

    store: Literal[False] | None = None
    metadata: dict[str, str] | None = Field(None, max_length=0)
    service_tier: Literal["auto", "default"] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class SamplingRequest(NeutralFields):
    """The fields that chat and text completions share."""

    model: str
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    response_format: ResponseFormat | None = None
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, max_length=MAX_BIASES
    )

    @model_validator(mode="after")
    def streams_with_options(self) -> SamplingRequest:
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options has an effect with stream only.", param="stream_options")
        return self

    def seeds(self) -> list[int | None]:
        """The seed of each choice: the first has the one that was given, so that more choices leave it as it was."""
        seed = self.seed
        return [None if seed is None else (seed + number) % 2**63 if number else seed for number in range(self.n or 1)]

    def logprobs_per_token(self) -> int:
        """Return how many log probabilities an answer has for each token."""
        return 0

    def stops(self) -> list[str]:
        stops = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        if len(stops) > MAX_STOPS or not all(stops):
            raise ApiError(400, f"stop takes at most {MAX_STOPS} texts, none of them empty.", param="stop")
        return stops


class ChatRequest(SamplingRequest):
    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] | None = Field(None, min_length=1, max_length=MAX_TOOLS)
    tool_choice: Literal["auto", "none"] | None = None
    """Nothing makes a model call a tool here, so it cannot be required."""
    parallel_tool_calls: bool = True
    """False: of several calls in an answer, the first alone is returned."""
    modalities: list[Literal["text"]] | None = None

    @model_validator(mode="after")
    def one_limit(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            text = "max_tokens and max_completion_tokens are the same; send the second."
            raise ApiError(400, text, param="max_tokens")
        return self

    def logprobs_per_token(self) -> int:
        return 1 + (self.top_logprobs or 0) if self.logprobs else 0

    def turns(self) -> list[JsonObject]:
        """Return the messages as a chat template takes them. Raises `ApiError` 400 for a result that names no call."""
        turns = [message.for_template() for message in self.messages]
        require_known_calls(turns)
        return turns

    def offered(self) -> list[dict[str, object]] | None:
        """Return the tools as a chat template takes them."""
        return [tool.for_template() for tool in self.tools] if self.tools and self.tool_choice != "none" else None


def require_known_calls(turns: list[JsonObject]) -> None:
    """Raise `ApiError` 400 for the id of a result that none of the calls before it has."""
    calls: list[str] = []
    for index, turn in enumerate(turns):
        if turn["role"] != "tool":
            calls = [call["id"] for call in turn.get("tool_calls") or [] if "id" in call]
        elif calls and turn.get("tool_call_id", calls[0]) not in calls:
            path = f"messages.{index}.tool_call_id"
            raise ApiError(400, f"{path} is {turn['tool_call_id']!r}; the calls are {', '.join(calls)}.", param=path)


class CompletionRequest(SamplingRequest):
    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0, le=20)
    prompt_logprobs: int | None = Field(None, ge=0, le=1_000_000)
    """vLLM's: the likeliest tokens at each place of the prompt, and the token there, by id."""
    echo: bool = False
    best_of: Literal[1] | None = None

    def logprobs_per_token(self) -> int:
        return max(0 if count is None else 1 + count for count in (self.logprobs, self.prompt_logprobs))

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, each as text or as token ids."""
        prompts: list[Any] = [self.prompt] if isinstance(self.prompt, str) else list(self.prompt)
        return [prompts] if prompts and isinstance(prompts[0], int) else prompts


class LoadAdapter(ApiRequest):
    lora_name: str = ""
    lora_path: str = ""
    load_inplace: bool = False
    lora_int_id: int | None = None
    base_model_name: str | None = None


class UnloadAdapter(ApiRequest):
    lora_name: str = ""
    lora_int_id: int | None = None


class Alias(ApiRequest):
    """`model` None removes the alias."""

    alias: str = Field(min_length=1, max_length=MAX_NAME)
    model: str | None = Field(None, min_length=1, max_length=MAX_NAME)

    @field_validator("alias")
    @classmethod
    def is_shown(cls, alias: str) -> str:
        return check_name(alias)


def parse(kind: type[Parsed], body: bytes) -> Parsed:
    """Return the request in a body. Raises `ApiError` 400 that names the field."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        names = [str(part) for part in first["loc"] if not TYPE_OF_UNION.fullmatch(str(part))]
        field = ".".join(names) or None
        if first["type"] == "extra_forbidden":
            raise ApiError(400, f"`{field}` is not supported by this server.", param=field) from error
        raise ApiError(400, f"{field or 'body'}: {first['msg']}", param=field) from error


async def read_request(kind: type[Parsed], request: Request) -> Parsed:
    """Return the request in the body of an HTTP request. Raises `ApiError`."""
    return parse(kind, await json_body(request))


def sse(value: Mapping[str, object]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
