"""A flow for each template, whose parameters are the fields of the template's form in `spec/templates.py`.

So the form in Prefect, `prefect deployment run -p` and `trainyard run -p` speak one language.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from prefect import Flow, flow
from pydantic.fields import FieldInfo

from flows.walker import FLOW, task_runner
from trainyard.spec.templates import TEMPLATES


def template_flow(name: str) -> Callable[[Callable[..., Any]], Flow[..., Any]]:
    """Return a flow named as its template, with the form's signature and with its fields in the docstring."""
    fields = TEMPLATES[name].model.model_fields

    def decorate(body: Callable[..., Any]) -> Flow[..., Any]:
        arguments = "\n".join(f"    {field}: {describe_field(info)}" for field, info in fields.items())
        body.__doc__ = f"{body.__doc__}\n\nArgs:\n{arguments}"
        parameters = [parameter(field, info) for field, info in fields.items()]
        vars(body)["__signature__"] = inspect.signature(body).replace(parameters=parameters)
        return flow(name=name, task_runner=task_runner(), **FLOW)(body)

    return decorate


def parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return a parameter with the field's limits; its description is in the docstring, where Prefect reads it."""
    kind: Any = field.annotation
    for limit in field.metadata:
        kind = Annotated[kind, limit]
    default = inspect.Parameter.empty if field.is_required() else field.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def describe_field(field: FieldInfo) -> str:
    """Return the description of a field, or of its group where the field has none."""
    return field.description or inspect.getdoc(field.annotation) or ""
