"""The OpenAPI document (3.1): one operation of HTTP for each operation of the table, from the same models.

The routes of the service itself, which log a browser in or say how it is, are in `SERVICE_ROUTES`.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, get_type_hints

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

import trainyard
from trainyard.app.live.service_threads import WorkerState
from trainyard.app.responses import Blob, Response
from trainyard.loading import load_object
from trainyard.operations.table import OPERATIONS, Operation, Scope, find_route, group_lines
from trainyard.surfaces.access.entrance import LOGIN, LOGOUT, LoginInput
from trainyard.surfaces.bodies import FILE_TYPE, IF_MATCH, JSON_TYPE, TENSORS, TENSORS_TYPE
from trainyard.surfaces.invocation import load_implementation
from trainyard.surfaces.problems import MEDIA_TYPE, ProblemDocument
from trainyard.surfaces.rest.routes import EVENTS_TYPE, operation_id

REFERENCE = "#/components/schemas/{model}"
NAMED = ("properties", "$defs", "schemas")
"""Keys whose value has names of its own, and schemas below them."""
PARAMETER = re.compile(r"\{(\w+)\}")
PROBLEMS = {
    400: "The body is not valid JSON, or the Host is not one of this server.",
    401: "The token is missing or wrong.",
    403: "The token does not allow this, or only a caller on the machine may ask for it.",
    404: "It does not exist, or belongs to another tenant.",
    409: "Locked, taken, or changed meanwhile.",
    413: "The body is too long.",
    415: "The body is not sent as JSON.",
    422: "A value is not valid, or a spec is refused; `errors` lists every reason.",
    424: "A trainer, a model or a server that this needs is not available.",
    429: "Too many requests; Retry-After says when to try again.",
    503: "The Prefect server does not answer.",
}
Json = dict[str, Any]


class ServiceHealth(Response):
    """Health of the service."""

    status: Literal["ok"]
    version: str
    worker: WorkerState
    """Whether a worker takes runs, as it was a moment ago; unknown while Prefect does not answer."""


class LoggedIn(Response):
    """Logged-in user and its permissions."""

    caller: str
    scope: Scope
    tenant: str
    """Empty: every tenant."""
    csrf: str
    """For the header X-CSRF-Token of what changes something; empty for a caller with a token."""


class ServiceRoute(NamedTuple):
    """A route of the service itself, which is not in the table of operations."""

    id: str
    summary: str
    open: bool = False
    """Whether it needs no caller."""
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    """None: an answer without content, or a text."""
    media_type: str = ""


SERVICE_ROUTES = {
    ("GET", "/health"): ServiceRoute(
        "health", "Whether the service answers, and whether a worker takes runs.", open=True, answer=ServiceHealth
    ),
    ("GET", "/metrics"): ServiceRoute("metrics", "Metrics for Prometheus.", media_type="text/plain"),
    ("POST", LOGIN): ServiceRoute(
        "login", "Log a browser in: a token once, then a cookie.", open=True, body=LoginInput, answer=LoggedIn
    ),
    ("GET", LOGIN): ServiceRoute("logged_in", "Who is logged in.", answer=LoggedIn),
    ("POST", LOGOUT): ServiceRoute("logout", "End the login of a browser."),
}


def response_type(name: str) -> Any:
    """Return what an operation returns: a model, or a union of models."""
    return get_type_hints(load_implementation(name))["return"]


def openapi_document() -> Json:
    """Return the whole document. Imports the implementation of every operation."""
    models: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
        *((name, "validation", TypeAdapter(row.request)) for name, row in OPERATIONS.items()),
        *((name, "serialization", TypeAdapter(response_type(name))) for name in OPERATIONS),
        *(
            (f"{name} body", "validation", TypeAdapter(load_object(f"trainyard.{row.body_schema}")))
            for name, row in OPERATIONS.items() if row.body_schema
        ),
        ("problem", "serialization", TypeAdapter(ProblemDocument)),
        *((route.id, "validation", TypeAdapter(route.body)) for route in SERVICE_ROUTES.values() if route.body),
        *((route.id, "serialization", TypeAdapter(route.answer)) for route in SERVICE_ROUTES.values() if route.answer),
    ]  # fmt: skip
    schemas, shared = TypeAdapter.json_schemas(models, ref_template=REFERENCE)
    components: Json = dict(shared.get("$defs", {}))
    paths: Json = {}
    for name, row in OPERATIONS.items():
        method, path = find_route(name)
        request_schema = resolve_reference(schemas[(name, "validation")], components)
        document = describe(name, row, request_schema, schemas[(name, "serialization")])
        if body := describe_body(name, row, request_schema, schemas.get((f"{name} body", "validation")), components):
            document["requestBody"] = body
        paths.setdefault(path, {})[method.lower()] = document
    for (method, path), route in SERVICE_ROUTES.items():
        paths.setdefault(path, {})[method.lower()] = describe_service(route, schemas)
    drop_object_defaults(paths)
    drop_object_defaults({"schemas": components})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trainyard", "version": trainyard.__version__, "license": {"name": "Apache-2.0"},
            "description": "Chains, jobs, adapters and step sessions of one machine.",
        },
        "tags": [{"name": word, "description": text} for word, text in group_lines().items()],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {str(status): problem_response(text) for status, text in PROBLEMS.items()},
        },
    }  # fmt: skip


def drop_object_defaults(schema: object) -> None:
    """Remove defaults that are objects, in place: generators of clients cannot write them, and drop the whole model."""
    if isinstance(schema, list):
        for item in schema:
            drop_object_defaults(item)
    elif isinstance(schema, dict):
        if isinstance(schema.get("default"), dict):
            del schema["default"]
        for key, value in schema.items():
            drop_object_defaults(list(value.values()) if key in NAMED and isinstance(value, dict) else value)


def resolve_reference(schema: Json, components: Json) -> Json:
    """Return the schema itself, where it is a reference to one."""
    reference = schema.get("$ref", "")
    return components[reference.rsplit("/", 1)[-1]] if reference else schema


def problem_response(text: str) -> Json:
    return {
        "description": text,
        "content": {MEDIA_TYPE: {"schema": {"$ref": REFERENCE.format(model="ProblemDocument")}}},
    }


def describe(name: str, row: Operation, schema: Json, operation: Json) -> Json:
    """Return one operation: its parameters and answers."""
    method, path = find_route(name)
    properties, required = schema.get("properties", {}), set(schema.get("required", ()))
    in_path = PARAMETER.findall(path)
    parameters = [parameter(name, properties[name], "path", needed=True) for name in in_path]
    rest = {key: schema for key, schema in properties.items() if key not in in_path}
    if rest.pop(IF_MATCH, None):
        parameters.append({
            "name": "If-Match", "in": "header", "required": False, "schema": {"type": "string"},
            "description": "The ETag of what is changed.",
        })  # fmt: skip
    if method == "GET":
        parameters += [parameter(key, schema, "query", needed=key in required) for key, schema in rest.items()]
    elif row.body:
        parameters += [
            parameter(key, schema, "query", needed=key in required) for key, schema in rest.items() if key != row.body
        ]
    if method != "GET" and row.scope != "read":
        parameters.append({
            "name": "Idempotency-Key", "in": "header", "required": False,
            "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
            "description": "The same key and request again get the first answer.",
        })  # fmt: skip
    document: Json = {
        "operationId": operation_id(name),
        "summary": row.summary,
        "tags": [word] if (word := name.partition(" ")[0]) in group_lines() else [],
        "parameters": parameters,
        "responses": responses(row, operation),
        "x-scope": row.scope.value,
    }
    if row.local:
        document["description"] = f"Only for callers on the machine itself: {row.local}"
    return document


def describe_body(name: str, row: Operation, request_schema: Json, whole: Json | None, components: Json) -> Json | None:
    """Return the body of an operation: one field of its request, the fields that are not in the path, or none."""
    method, path = find_route(name)
    if row.body:
        schema = whole or request_schema["properties"][row.body]
        return {"required": True, "content": {JSON_TYPE: {"schema": schema}}}
    elsewhere = {*PARAMETER.findall(path), IF_MATCH}
    rest = {key: schema for key, schema in request_schema.get("properties", {}).items() if key not in elsewhere}
    if method == "GET" or not rest:
        return None
    body = request_body(name, rest, set(request_schema.get("required", ())) - elsewhere, components)
    if row.takes_file:
        body["content"][FILE_TYPE] = {"schema": {"type": "string", "format": "binary"}}
    return body


def parameter(name: str, schema: Json, location: str, *, needed: bool) -> Json:
    schema = drop_null(schema)
    described: Json = {"name": name, "in": location, "required": needed, "schema": schema}
    if "description" in schema:
        described["description"] = schema["description"]
    if schema.get("type") == "object":
        described |= {"style": "deepObject", "explode": True}
    return described


def drop_null(schema: Json) -> Json:
    """Return a text cannot be null: a parameter without a value is left out."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    simplified = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    default = {"default": schema["default"]} if schema.get("default") is not None else {}
    if not choices:
        return {**simplified, **default}
    return {**simplified, **default, **(choices[0] if len(choices) == 1 else {"anyOf": choices})}


def request_body(name: str, properties: Json, required: set[str], components: Json) -> Json:
    """Return a JSON object with the fields that are not in the path; tensors may be sent as they are."""
    title = f"{''.join(part.title() for part in operation_id(name).split('_'))}Body"
    schema: Json = {"type": "object", "title": title, "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = sorted(required)
    components[title] = schema
    content: Json = {JSON_TYPE: {"schema": {"$ref": REFERENCE.format(model=title)}}}
    if TENSORS in properties:
        content[TENSORS_TYPE] = {"schema": {"type": "string", "format": "binary"}}
    return {"required": bool(required), "content": content}


def responses(row: Operation, responses: Json) -> Json:
    is_blob = responses.get("$ref", "").endswith(f"/{Blob.__name__}")
    content: Json = {JSON_TYPE: {"schema": responses}}
    if is_blob:
        content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    if row.stream:
        content[EVENTS_TYPE] = {"schema": {"type": "string"}}
    good = {str(row.status): {"description": "What it returned.", "content": content}}
    return {**good, **{str(status): {"$ref": f"#/components/responses/{status}"} for status in PROBLEMS}}


def describe_service(route: ServiceRoute, schemas: Any) -> Json:
    """Return a route of the service itself. What needs no caller may still be refused for its address or its rate."""
    content: Json = {}
    if route.answer:
        content = {JSON_TYPE: {"schema": schemas[(route.id, "serialization")]}}
    elif route.media_type:
        content = {route.media_type: {"schema": {"type": "string"}}}
    status, description = ("200", "What it found.") if content else ("204", "Done.")
    good: Json = {"description": description, **({"content": content} if content else {})}
    responses: Json = {
        "operationId": route.id,
        "summary": route.summary,
        "parameters": [],
        "responses": {
            status: good,
            **{str(status_code): {"$ref": f"#/components/responses/{status_code}"} for status_code in PROBLEMS},
        },
    }
    if route.body:
        schema = schemas[(route.id, "validation")]
        responses["requestBody"] = {"required": True, "content": {JSON_TYPE: {"schema": schema}}}
    return {**responses, "security": []} if route.open else responses


def find_models(name: str) -> tuple[type[BaseModel], object]:
    """Return the request and the response of an operation."""
    return OPERATIONS[name].request, response_type(name)
