"""An operation over HTTP, without the HTTP: requests, the meaning of answers, and retries.

`conversation` is a generator. It yields an `HttpExchange` to send, a `NextLine` of the stream that was opened last, or
a `Pause` to wait; it is sent the response or the line; it returns the operation's response. So the same code speaks for
a blocking client (`remote.py`) and for an asynchronous one (`asynchronous.py`). Both retry an exchange by tenacity,
with the same `retry_policy`.

What starts something carries an Idempotency-Key, so that a request that is sent again starts nothing twice.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter
from tenacity import RetryCallState, stop_after_attempt

from trainyard.app.jobs.jobs import Job
from trainyard.app.plan.parse import deep_merge, find_file
from trainyard.app.run_records import RunResult
from trainyard.callbacks import ignore
from trainyard.errors import InvalidInput, NotFound, TrainyardError, Unavailable, from_fields
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.operations.table import OPERATIONS, Scope, find_route
from trainyard.spec.load.files import load_value
from trainyard.spec.states import NO_TRAINER_DETAIL, JobState
from trainyard.surfaces.invocation import check_request, load_implementation
from trainyard.surfaces.sdk.events import EVENTS_TYPE, NextLine, is_event_stream, media_type, next_event

TRIES = 4
RETRIED = (429, 502, 503, 504)
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 10.0
FIELD_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""A header's value (RFC 9110, 5.5): without a line end, which would begin another field."""
AWAY_TRIES = 16
"""Of a client that follows a run: the service may be away for a minute and a half, as after it was killed."""
STREAM_TIMEOUT_S = 60.0
"""A stream of the service has a line every 15 seconds."""
ENDS = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELED, JobState.PAUSED)
PARAMETER = re.compile(r"\{(\w+)\}")
TENSORS, TENSORS_TYPE, IF_MATCH = "tensors", "application/x-safetensors", "if_match"
FILE_TYPE = "application/octet-stream"
SHOWN_CHARS = 200
REASON_FIELDS = ("code", "node", "field", "because", "instead", "row")


@dataclass(frozen=True)
class HttpExchange:
    """A request."""

    method: str
    path: str
    params: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    is_stream: bool = False
    """Whether the answer may be a stream of events, which is read line by line."""
    most_tries: int = TRIES


@dataclass(frozen=True)
class Pause:
    seconds: float


Step = HttpExchange | NextLine | Pause
Heard = httpx.Response | str | None
"""The result of a step: a response, a line, or None after a pause and after the last line of a stream."""
Talk: TypeAlias = Generator[Step, Heard, Any]


def conversation(name: str, fields: JsonMapping, note: Callable[[Any], None] = ignore) -> Talk:
    """Return everything that a call of an operation takes; returns its response. `note` gets each state of a watched
    job.

    Raises the errors of the operation, and `Unavailable` (`E-SERVER-UNREACHABLE`) where nothing answers.
    """
    arguments = dict(fields)
    watch = bool(arguments.pop("watch", False))
    if name == "run":
        started = yield from start_run(arguments)
    else:
        started = yield from ask(name, READ_HERE[name](arguments) if name in READ_HERE else arguments)
    return (yield from follow(started, note)) if watch else started


def ask(name: str, fields: JsonMapping) -> Talk:
    response = yield from send(build_exchange(name, check_request(name, dict(fields), name)))
    return parse_response(name, response)


def send(exchange: HttpExchange) -> Generator[Step, Heard, httpx.Response]:
    response = yield exchange
    assert isinstance(response, httpx.Response), "the result of an exchange"
    return response


# Retries: what starts something carries an Idempotency-Key, so every exchange may be sent again


def retry_policy(exchange: HttpExchange) -> JsonObject:
    """Return the arguments of tenacity's `Retrying` and `AsyncRetrying` for an exchange.

    A request is sent again if it did not arrive or came too early. The last response is returned whatever it is.
    Raises `Unavailable` (`E-SERVER-UNREACHABLE`) where no try has brought a response.
    """
    return {
        "stop": stop_after_attempt(exchange.most_tries), "wait": wait_before_retry, "retry": needs_retry,
        "retry_error_callback": last_response,
    }  # fmt: skip


def needs_retry(state: RetryCallState) -> bool:
    """Return whether a try failed for a reason that passes."""
    assert state.outcome is not None, "called after a try"
    error = state.outcome.exception()
    return isinstance(error, httpx.RequestError) if error else is_early(state.outcome.result(), state.attempt_number)


def is_early(response: httpx.Response, tries: int) -> bool:
    """Return whether the service is busy, or still works on the first try of this request, whose answer was lost."""
    first_is_running = tries > 1 and response.status_code == 409 and "Idempotency-Key" in response.text
    return response.status_code in RETRIED or first_is_running


def wait_before_retry(state: RetryCallState) -> float:
    """Return the seconds until the next try: those of `Retry-After`, or twice as many as before."""
    assert state.outcome is not None, "called after a try"
    text = "" if state.outcome.failed else state.outcome.result().headers.get("retry-after", "")
    wait_s = float(text) if text.isdecimal() else FIRST_WAIT_S * 2 ** (state.attempt_number - 1)
    return min(wait_s, LONGEST_WAIT_S)


def last_response(state: RetryCallState) -> httpx.Response:
    assert state.outcome is not None, "called after a try"
    if (error := state.outcome.exception()) is not None:
        why = f"{type(error).__name__}: {str(error).rstrip('.')}".removesuffix(": ")  # some have no text
        raise Unavailable(
            "The service does not answer.", why=f"{why}.",
            do="Check its address, and that it runs: `trainyard serve --role training`.", code="E-SERVER-UNREACHABLE",
        ) from error  # fmt: skip
    response: httpx.Response = state.outcome.result()
    return response


# Requests


def build_exchange(name: str, request: BaseModel) -> HttpExchange:
    """Return the request of an operation as HTTP has it: path, query, headers, body."""
    row, (method, path) = OPERATIONS[name], find_route(name)
    if row.takes_file and (file := getattr(request, "file", None)) is not None:
        return build_upload(file, request, path)
    tensors = getattr(request, TENSORS, None)
    whole = not tensors and not row.body and method != "GET"
    apart = set(list_parameters(path))
    if whole:
        parameters = {field: getattr(request, field) for field in apart & request.model_fields_set}
    else:
        parameters = request.model_dump(mode="json", exclude_unset=True, exclude={TENSORS} if tensors else None)
    for parameter in list_parameters(path)[:-1]:
        path = path.replace(f"{{{parameter}}}", quote(str(parameters.pop(parameter)), safe=""))
    headers = {} if row.scope is Scope.READ or method == "GET" else {"idempotency-key": secrets.token_hex(16)}
    if parameters.get(IF_MATCH):
        headers["if-match"] = f'"{parameters.pop(IF_MATCH)}"'
    if tensors:
        headers["content-type"] = TENSORS_TYPE
        return HttpExchange(method, path, build_query(parameters), headers, bytes(tensors))
    if method == "GET":
        return HttpExchange(method, path, build_query(parameters), headers)
    headers["content-type"] = "application/json"
    if whole:
        return HttpExchange(method, path, {}, headers, dump_request(request, apart))
    body = json.dumps(parameters.pop(row.body, {})).encode()
    return HttpExchange(method, path, build_query(parameters), headers, body)


def build_upload(file: Path, request: BaseModel, path: str) -> HttpExchange:
    """Return a file of this machine as the body. Raises `NotFound` (`E-DATA-NOT-FOUND`)."""
    if not file.is_file():
        raise NotFound(f"There is no file {str(file)[:SHOWN_CHARS]!r}.", do="Correct it.", code="E-DATA-NOT-FOUND")
    fields = request.model_dump(mode="json", exclude_unset=True, exclude={"file"})
    named = path.replace("{name}", quote(fields.pop("name", "") or file.name, safe=""))
    return HttpExchange("PUT", named, build_query(fields), {"content-type": FILE_TYPE}, file.read_bytes())


def encode_headers(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return headers as they are sent.

    Raises `InvalidInput` (`E-PARAMETER`) for a value that would be another header.
    """
    for name, value in headers.items():
        if not FIELD_VALUE.fullmatch(value):
            raise InvalidInput(
                f"The header {name} would contain a character that no header has.",
                do="Correct the token or the value that it is made of.", code="E-PARAMETER",
            )  # fmt: skip
    return {name.encode("ascii"): value.encode("latin-1") for name, value in headers.items()}


def request_words(exchange: HttpExchange) -> JsonObject:
    """Return the arguments of httpx for an exchange."""
    return {
        "method": exchange.method, "url": exchange.path, "params": exchange.params,
        "headers": encode_headers(exchange.headers), "content": exchange.content,
    }  # fmt: skip


@cache
def list_parameters(path: str) -> tuple[str, ...]:
    """Return the fields that are not in the body: those of the path, and at last that of the header If-Match."""
    return (*PARAMETER.findall(path), IF_MATCH)


def dump_request(request: BaseModel, left_out: set[str]) -> bytes:
    """Return the fields of a request that were given, as JSON; a number that JSON does not have is for the service to
    refuse.

    pydantic writes a batch without a copy of it, but no lone surrogates.
    """
    try:
        return request.model_dump_json(exclude_unset=True, exclude=left_out).encode()
    except ValueError:
        return json.dumps(request.model_dump(mode="json", exclude_unset=True, exclude=left_out)).encode()


def build_query(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a query: lists repeat, objects are `field[key]`, missing values are left out."""
    texts = {True: "true", False: "false"}
    objects = {key: value for key, value in fields.items() if isinstance(value, Mapping)}
    if objects:
        fields = {key: value for key, value in fields.items() if key not in objects}
        fields |= {f"{key}[{name}]": value for key, value_of in objects.items() for name, value in value_of.items()}
    return {
        key: texts[value] if isinstance(value, bool) else value for key, value in fields.items() if value is not None
    }


# What comes back


def parse_response(name: str, response: httpx.Response) -> object:
    """Return the response of an operation, as its model; the bytes of a file. Raises the error that a problem
    describes.
    """
    if response.status_code >= 400:
        raise parse_error(response)
    if media_type(response) != "application/json":
        return response.content
    return response_type(name).validate_json(response.content)


@cache
def response_type(name: str) -> TypeAdapter[Any]:
    """Return what reads the response of an operation."""
    return TypeAdapter(get_type_hints(load_implementation(name))["return"])


def parse_error(response: httpx.Response) -> TrainyardError:
    """Return the error of a problem document (RFC 9457), of the class that the service raised."""
    try:
        problem = response.json()
        listed = problem["errors"]
        reasons = [
            {key: row.get(key) or "" for key in ("code", "field", "because", "instead", "row")} for row in listed
        ]
        if problem["kind"] == "Refused" and reasons:
            whole = [{**row, "node": item.get("node")} for row, item in zip(reasons, listed, strict=True)]
            return from_fields({"reasons": whole})
        why = " ".join([problem["why"], *(f"{row['field']}: {row['because']}." for row in reasons)]).strip()
        return from_fields({**problem, "what": problem["detail"], "why": why})
    except (ValueError, KeyError, TypeError):
        return Unavailable(
            f"{response.url} answered {response.status_code}, and not as the API of Trainyard does.",
            why=response.text[:SHOWN_CHARS], do="Check the address.", code="E-SERVER-UNREACHABLE",
        )  # fmt: skip


# Files of the caller: a service reads none of them


def read_checked(fields: JsonObject) -> JsonObject:
    return {**fields, "files": tuple(read_local_file(file) for file in fields.get("files", ()))}


def read_plan_target(fields: JsonObject) -> JsonObject:
    return {**fields, "target": read_local_file(fields.get("target"))}


def lay_over(below: str) -> Callable[[dict[str, object]], dict[str, object]]:
    """Put the content of `file` under the field of that name, as the operation does on its own machine."""

    def read(fields: JsonObject) -> JsonObject:
        if fields.get("file") is None:
            return fields
        rest = {key: value for key, value in fields.items() if key != "file"}
        value = load_value(find_file(str(fields["file"])))
        if not isinstance(value, Mapping):
            raise InvalidInput(f"{fields['file']} is not a mapping.", do="Correct the file.", code="E-SPEC-FILE")
        return {**rest, below: deep_merge(value, rest.get(below) or {})}

    return read


READ_HERE: dict[str, Callable[[dict[str, object]], dict[str, object]]] = {
    "check": read_checked,
    "plan": read_plan_target,
    "jobs create": lay_over("parameters"),
    "chains create": lay_over("spec"),
    "chains update": lay_over("spec"),
}
"""Operation -> what reads the files that its fields name on this machine."""


def read_local_file(target: object) -> object:
    """Return the content of a file of this machine; a template, a run's id and a mapping stay as they are."""
    is_file = isinstance(target, Path) or (isinstance(target, str) and Path(target).is_file())
    return load_value(find_file(str(target))) if is_file else target


# Runs


def start_run(fields: JsonObject) -> Talk:
    """Start a template or continue a run; a chain is stored first, because a service runs stored revisions."""
    target = read_local_file(fields.get("target"))
    if not isinstance(target, Mapping):
        return (yield from ask("run", {**fields, "target": target}))
    if "template" in target and "nodes" not in target:
        parameters = deep_merge(target.get("parameters") or {}, fields.get("parameters") or {})
        return (yield from ask("run", {**fields, "target": target["template"], "parameters": parameters}))
    if fields.get("parameters") or fields.get("preset"):
        raise InvalidInput(
            "A whole chain takes no parameters.", do="Edit it, or run a template.", code="E-PARAMETER"
        )  # fmt: skip
    stored = yield from store_chain(target)
    named = {"chain": stored.id, "revision": stored.revision}
    options = {key: fields[key] for key in ("refresh", "refresh_from", "tags", "group") if key in fields}
    return (yield from ask("chains run", named | options))


def store_chain(body: Mapping[str, object]) -> Talk:
    """Return the stored chain with this content: that of its name with a new revision if it differs, or a new chain."""
    name = str(body.get("name") or "chain")
    try:
        stored = yield from ask("chains show", {"chain": name})
    except NotFound:
        return (yield from ask("chains create", {"spec": dict(body)}))
    return (yield from ask("chains update", {"chain": stored.id, "spec": dict(body), "if_match": stored.etag}))


def follow(started: Any, note: Callable[[Any], None] = ignore) -> Talk:
    """Wait for the end of a run, by the stream of its state; returns how it ended."""
    name = getattr(started, "id", "") or started.run_id
    yield from wait_for_end(name, note)
    job = yield from ask("jobs show", {"job": name})
    result_fields = dict(started) if isinstance(started, RunResult) else {"run_id": job.run_id, "id": job.id}
    ended = {key: getattr(job, key) for key in ("name", "state", "message", "nodes", "url", "seconds")}
    kind = type(started) if isinstance(started, RunResult) else RunResult
    return kind(**{**result_fields, **ended})


def wait_for_end(name: str, note: Callable[[object], None]) -> Talk:
    """Return when a job has ended, is paused, or needs something to continue. A stream that was cut off is continued.

    Its events contain the job as lists have it, without its nodes.
    """
    job: Job | None = None
    last_id = ""
    while True:
        headers = {"accept": EVENTS_TYPE, **({"last-event-id": last_id} if last_id else {})}
        path = PARAMETER.sub(quote(name, safe=""), find_route("jobs show")[1])
        response = yield from send(HttpExchange("GET", path, headers=headers, is_stream=True, most_tries=AWAY_TRIES))
        if not is_event_stream(response):
            raise parse_error(response)
        while (event := (yield from next_event())) is not None:
            last_id = event.id or last_id
            if event.name == "job":
                job = Job.model_validate_json(event.data)
                note(job)
            if job is not None and (
                event.name == "end" or job.state in ENDS or job.detail == NO_TRAINER_DETAIL
            ):  # fmt: skip
                return None
        yield Pause(FIRST_WAIT_S)
