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
    """A flow named as its template. Its signature and the arguments in its docstring are those of the form."""
    fields = TEMPLATES[name].model.model_fields

    def decorate(body: Callable[..., Any]) -> Flow[..., Any]:
        told = "\n".join(f"    {field}: {explained(info)}" for field, info in fields.items())
        body.__doc__ = f"{body.__doc__}\n\nArgs:\n{told}"
        given = [parameter(field, info) for field, info in fields.items()]
        vars(body)["__signature__"] = inspect.signature(body).replace(parameters=given)
        return flow(name=name, task_runner=task_runner(), **FLOW)(body)

    return decorate


def parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """With the field's limits; what it tells stands in the docstring, where Prefect looks for it."""
    kind: Any = field.annotation
    for limit in field.metadata:
        kind = Annotated[kind, limit]
    default = inspect.Parameter.empty if field.is_required() else field.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def explained(field: FieldInfo) -> str:
    """What a field is for; of a group of fields that says no more, what the group is for."""
    return field.description or inspect.getdoc(field.annotation) or ""
