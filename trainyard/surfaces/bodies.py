"""Requests of operations from HTTP: path, query and headers as texts, a body as strict JSON.

JSON is read strictly: a number in quotation marks is not a number, a key may occur once, NaN is not JSON.

Limits on what JSON may contain, checked before any object is built: brackets and commas outside texts are counted.

Eight megabytes of `{}` are 2.7 million objects of Python: gigabytes, and half a minute of validation. To count them
takes milliseconds, and none of them is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import anyio.to_thread
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import Request

from trainyard.errors import InvalidInput, LimitExceeded
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.surfaces.problems import FieldProblem
from trainyard.surfaces.spool import INLINE_BYTES, UPLOADING, Body, find_slots, receive_body
from trainyard.tracing import new_traceparent, trace_id


@dataclass(frozen=True)
class JsonLimits:
    """Limits on the objects and lists, texts (keys included), and values of a body."""

    containers: int
    texts: int
    values: int


USUAL = JsonLimits(containers=60_000, texts=200_000, values=200_000)
"""Enough for a chain of ten thousand nodes, each with its needs and its config."""
BATCHES = JsonLimits(containers=200_000, texts=400_000, values=4_000_000)
"""Of calls of sessions: rows and prompts, and the tokens of a batch as lists of numbers."""


def require_structure(body: bytes, limits: JsonLimits) -> None:
    """Raise `LimitExceeded` (`E-BODY-LENGTH`) for JSON with more parts than the limits allow."""
    containers, values = count_parts(body)
    if containers <= limits.containers and values <= limits.values and body.count(b'"') <= 2 * limits.texts:
        return  # what is inside of texts was counted, too, so it is no more than this
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    texts = bare.count(b'"') // 2
    if texts <= limits.texts:
        containers, values = count_parts(b"".join(bare.split(b'"')[::2]))
    for number, most, noun in (
        (texts, limits.texts, "texts and keys"),
        (containers, limits.containers, "objects and lists"),
        (values, limits.values, "values"),
    ):
        if number > most:
            raise LimitExceeded(
                f"The body has more than {most:,} {noun}.", do="Send less at a time.", code="E-BODY-LENGTH"
            )


def count_parts(body: bytes) -> tuple[int, int]:
    """Return the number of objects and lists, and that of values at most."""
    containers = body.count(b"{") + body.count(b"[")
    return containers, containers + body.count(b",")


JSON_TYPE, TENSORS_TYPE = "application/json", "application/x-safetensors"
FILE_TYPE, PROTOBUF_TYPE = "application/octet-stream", "application/x-protobuf"
TRACEPARENT = "trainyard.traceparent"
"""Where the scope of a request has its traceparent."""
TENSORS, IF_MATCH = "tensors", "if_match"
"""Names of fields that a body of tensors, and the header If-Match, fill."""
MAX_BODY_BYTES = 8 << 20
SMALL_BODY_BYTES = 256 << 10
"""Of a request without lists and objects."""
MAX_TENSORS_BYTES = 256 << 20
MAX_TINKER_BYTES = 64 << 20
"""Of a request of the Tinker SDK, which cuts a step into chunks of 5 MB."""
MAX_DEPTH = 100
NESTED = {dict, list}
"""What a JSON reader makes of values that contain others."""
KEY_OF_OBJECT = re.compile(r"(\w+)\[([^\[\]]*)\]")
SHOWN = 20
"""Reasons that one answer lists, at most."""


class InvalidFields(InvalidInput):
    """Values that a request does not take; `fields` has one entry for each."""

    def __init__(self, message: str, fields: Iterable[FieldProblem] = (), **parts: str) -> None:
        self.fields = tuple(fields)
        super().__init__(message, **parts)


async def read_request(
    model: type[BaseModel],
    request: Request,
    whole: str = "",
    *,
    caller: str = "",
    folder: Path | None = None,
    limits: JsonLimits = USUAL,
) -> Any:
    """Return the request of an operation. With `whole`, the body is the value of that field, and the others are in the
    query.

    A long body waits in a file below `folder`, and is decoded on a thread, one at a time: neither its bytes nor its
    objects are there while others wait for the event loop.

    Raises `InvalidFields` (`E-PARAMETER`), `InvalidInput` (`E-JSON`, `E-MEDIA-TYPE`) and `LimitExceeded`.
    """
    path = {name: text_value(model, name, text) for name, text in request.path_params.items()}
    header = request.headers.get("if-match")
    if header is not None and IF_MATCH in model.model_fields:
        path[IF_MATCH] = header.strip().removeprefix("W/").strip('"')
    if request.method == "GET":
        return read_query(model, request.query_params, path)
    kind = media_type(request)
    if kind == TENSORS_TYPE and TENSORS in model.model_fields:
        query = read_query(model, request.query_params, path)
        async with receive_body(request, MAX_TENSORS_BYTES, caller, folder) as body, find_slots(tensors=True):
            tensors = await anyio.to_thread.run_sync(body.read)
            return query.model_copy(update={TENSORS: tensors})
    if not whole and request.scope["query_string"] and request.query_params:
        raise unknown_fields(request.query_params, "in the query", "Send them in the body, as JSON.")
    decode = partial(decode_request, model, path, kind=kind, query=request.query_params, whole=whole, limits=limits)
    async with receive_body(request, body_limit(model), caller, folder) as body:
        if body.size <= INLINE_BYTES:
            return decode(body)
        async with find_slots(tensors=False):
            return await anyio.to_thread.run_sync(decode, body)


async def read_upload(
    model: type[BaseModel],
    request: Request,
    stack: AsyncExitStack,
    *,
    caller: str = "",
    folder: Path | None = None,
    most_bytes: int = MAX_BODY_BYTES,
) -> Any:
    """Return the request of an operation whose body is a file; the file is there until `stack` is closed.

    Raises `InvalidFields` (`E-PARAMETER`), `InvalidInput` and `LimitExceeded` as `read_request` does.
    """
    query = read_query(model, request.query_params, {name: str(text) for name, text in request.path_params.items()})
    body = await stack.enter_async_context(receive_body(request, most_bytes, caller, folder, UPLOADING))
    return query.with_received(await anyio.to_thread.run_sync(body.open))


def decode_request(
    model: type[BaseModel],
    path: JsonMapping,
    received: Body,
    *,
    kind: str,
    query: QueryParams,
    whole: str,
    limits: JsonLimits,
) -> Any:
    """Return the request of a body that has arrived. Raises as `read_request` does."""
    body = received.read()
    require_structure(body, limits)
    if whole:
        return read_query(model, query, path, {whole: read_object(body, kind)})
    fields = {} if not body else read_object(body, kind)
    if twice := sorted(path.keys() & fields.keys()):
        raise unknown_fields(twice, "in the body, and in the path or a header", "Give them once.")
    try:
        return model.model_validate_json(add_fields(body if fields else b"{}", path), strict=True)
    except ValidationError as error:
        raise invalid_fields(error) from error


@lru_cache(256)
def body_limit(model: type[BaseModel]) -> int:
    """Return how long the body of a request may be: one whose fields are all plain values has few of them."""
    fields = model.model_fields.values()
    return MAX_BODY_BYTES if any(has_parts(field.annotation) for field in fields) else SMALL_BODY_BYTES


def has_parts(annotation: object) -> bool:
    """Return whether a field's type has an unknown number of values in it."""
    origin = get_origin(annotation) or annotation
    if origin in (dict, list, tuple, set, Any, bytes) or (isinstance(origin, type) and issubclass(origin, BaseModel)):
        return True
    return any(has_parts(arg) for arg in get_args(annotation) if not isinstance(arg, str))


def add_fields(body: bytes, fields: Mapping[str, object]) -> bytes:
    """Return a JSON object with further fields: a batch in it is not written out a second time."""
    if not fields:
        return body
    more = json.dumps(fields, default=str).encode()
    inner = body.strip()[1:-1]
    return b"%s,%s}" % (more[:-1], inner) if inner.strip() else more


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def read_object(body: bytes, kind: str) -> dict[str, object]:
    """Return a JSON object. Raises `InvalidInput` (`E-JSON`, `E-MEDIA-TYPE`)."""
    if kind != JSON_TYPE:
        raise InvalidInput(
            f"The body is sent as {kind or 'nothing'}, not as {JSON_TYPE}.",
            do=f"Send the header Content-Type: {JSON_TYPE}.", code="E-MEDIA-TYPE",
        )  # fmt: skip
    try:
        value = STRICT.decode(body.decode())
        if body.count(b"[") + body.count(b"{") > MAX_DEPTH:  # fewer cannot be deeper
            require_depth(value, MAX_DEPTH)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidInput("The body is not valid JSON.", why=f"{why}.", do="Correct it.", code="E-JSON") from error
    if not isinstance(value, dict):
        raise InvalidInput("The body is not a JSON object.", do="Send the fields as an object.", code="E-JSON")
    return value


def build_object(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return fields


def refuse_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


STRICT = json.JSONDecoder(object_pairs_hook=build_object, parse_constant=refuse_constant)


def require_depth(value: Any, left: int) -> None:
    """Raise `ValueError` for a value that is nested more deeply."""
    level = [value]
    while level := [
        inner
        for nested in level
        if type(nested) in NESTED
        for inner in (nested.values() if type(nested) is dict else nested)
    ]:
        left -= 1
        if left < 0:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def read_query(model: type[BaseModel], query: QueryParams, path: JsonMapping, body: JsonMapping | None = None) -> Any:
    """Return the request of a query. A field with a list of values may be repeated, any other may not."""
    texts: JsonObject = dict(path)
    for name in query:
        if body and name in body:
            raise unknown_fields([name], "in the query, and is the body", "Leave it out.")
        values = query.getlist(name)
        if (inner := KEY_OF_OBJECT.fullmatch(name)) and is_mapping(model, inner[1]):
            if len(values) > 1:
                raise unknown_fields([name], "twice in the query", "Give it once.")
            texts.setdefault(inner[1], {})[inner[2]] = values[0]
            continue
        field = model.model_fields.get(name)
        if field is None:
            from trainyard.spec.load.parse import suggest  # only an error needs it

            do = suggest(name, model.model_fields, "Leave it out.")
            raise unknown_fields([name], "in the query, which has no field of that name", do)
        if name in path:
            raise unknown_fields([name], "in the query", "Leave it out.")
        if is_repeatable(field.annotation):
            texts[name] = values
        elif len(values) > 1:
            raise unknown_fields([name], "twice in the query", "Give it once.")
        else:
            texts[name] = values[0]
    try:
        if not body and not any(isinstance(value, list) for value in texts.values()):  # pydantic takes no list there
            return model.model_validate_strings({name: to_text(value) for name, value in texts.items()})
        parsed = {name: text_value(model, name, value) for name, value in texts.items()}
        return model.model_validate_json(json.dumps({**parsed, **(body or {})}, default=str), strict=True)
    except ValidationError as error:
        raise invalid_fields(error) from error


def to_text(value: object) -> object:
    return value if isinstance(value, str | list | dict) else str(value)


def is_mapping(model: type[BaseModel], name: str) -> bool:
    """Return whether a field is an object, which a query gives key by key: `columns[prompt]=question` (OpenAPI
    deepObject).
    """
    field = model.model_fields.get(name)
    return field is not None and (get_origin(field.annotation) or field.annotation) is dict


@lru_cache(1024)
def get_adapter(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    kind: Any = model.model_fields[name].annotation
    return TypeAdapter(kind)


def text_value(model: type[BaseModel], name: str, text: str | list[str]) -> Any:
    """Return the value of a parameter of the path or the query, as JSON has it. Raises `InvalidFields`
    (`E-PARAMETER`).
    """
    if not isinstance(text, str | list):
        return text
    if isinstance(text, str) and model.model_fields[name].annotation is str:
        return text  # the model validates it
    adapter = get_adapter(model, name)
    try:
        value = adapter.validate_python(text) if isinstance(text, list) else adapter.validate_strings(text)
    except ValidationError as error:
        raise invalid_fields(error, name) from error
    return adapter.dump_python(value, mode="json")


def is_repeatable(annotation: object) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return any(is_repeatable(arg) for arg in get_args(annotation))
    return get_origin(annotation) is tuple


def unknown_fields(names: Iterable[str], where: str, do: str) -> InvalidFields:
    refused = [name[:100] for name in sorted(names)[:SHOWN]]
    fields = [FieldProblem(field=name, because=f"it is given {where}", code="E-PARAMETER") for name in refused]
    return InvalidFields(f"{', '.join(refused)}: given {where}.", fields, do=do, code="E-PARAMETER")


def invalid_fields(error: ValidationError, location: str = "") -> InvalidFields:
    """Return what pydantic found, without the values that were given: they may be secrets."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    fields = [
        FieldProblem(
            field=".".join(filter(None, (location, *map(str, detail["loc"]))))[:500],
            because=detail["msg"],
            code="E-PARAMETER",
        )
        for detail in errors[:SHOWN]
    ]
    first = fields[0]
    return InvalidFields(
        f"{first.field or 'The request'}: {first.because}" + (f" ({len(errors)} reasons)" if len(errors) > 1 else ""),
        fields, do="Correct the fields that are listed.", code="E-PARAMETER",
    )  # fmt: skip


def read_trace_id(request: Request) -> str:
    """Return the correlation id of a request: the trace id of its `traceparent` (W3C Trace Context), or a new one."""
    traceparent: str | None = request.scope.get(TRACEPARENT)
    if traceparent is None:
        traceparent = request.scope[TRACEPARENT] = new_traceparent(request.headers.get("traceparent", ""))
    return trace_id(traceparent)
