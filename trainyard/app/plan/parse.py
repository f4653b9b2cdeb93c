"""From a request to the chain that it means: a template's name with parameters, a file, or the content of one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from trainyard.errors import InvalidInput, NotFound, Refused
from trainyard.locations import checkout
from trainyard.settings import settings as current_settings
from trainyard.spec.axes.axis import Strict
from trainyard.spec.chain import ChainSpec
from trainyard.spec.graph import check
from trainyard.spec.job import JobSpec
from trainyard.spec.load.files import load_value, read_chain
from trainyard.spec.migrate import list_deprecated, spell_out
from trainyard.spec.roles import name_current_folder
from trainyard.spec.templates import TEMPLATES

JOB = "training-job"
JOB_DEPLOYMENT = f"{JOB}/local"
NAMES = (*TEMPLATES, JOB)
"""What `plan` and `run` accept instead of a file."""
PRESETS = "deployments/presets"


class ChainRequest(BaseModel):
    """A parsed request: the chain, and the deployment with the parameters that run it."""

    model_config = ConfigDict(frozen=True)

    spec: ChainSpec
    deployment: str
    parameters: dict[str, Any]
    notes: tuple[str, ...] = ()
    """A line for each setting that is where an earlier version had it."""


def parse_request(
    target: str | Mapping[str, Any], parameters: Mapping[str, Any] | None = None, preset: str | None = None
) -> ChainRequest:
    """Return what a template's name with parameters, a file, or the content of one asks for.

    Raises `NotFound` (`E-PARAMETER`), `Refused` with every reason.
    """
    overrides = dict(parameters or {})
    value = (
        overrides
        if isinstance(target, str) and target in NAMES
        else load_value(find_file(target))
        if isinstance(target, str)
        else dict(target)
    )
    if isinstance(target, str) and target in NAMES:
        request = parse_template_call(
            target, deep_merge(read_preset(target, preset), overrides) if preset else overrides
        )
    elif is_template_call(value):
        request = parse_template_call(str(value["template"]), deep_merge(value.get("parameters") or {}, overrides))
    elif overrides or preset:
        raise InvalidInput(
            f"{target if isinstance(target, str) else 'What was given'} is a whole chain and takes no parameters.",
            do="Edit the file, or run a template with -p.",
            code="E-PARAMETER",
        )
    else:
        spec = parse_chain(value)
        request = ChainRequest(spec=spec, deployment="chain/adhoc", parameters={"spec": spec.model_dump(mode="json")})
    return request.model_copy(update={"notes": tuple(list_deprecated(value))})


def find_file(target: str) -> Path:
    """Return the file of that name. Raises `NotFound` (`E-PARAMETER`)."""
    with suppress(OSError, ValueError):  # a name that no file can have, such as a very long one
        if Path(target).is_file():
            return Path(target)
    raise NotFound(
        f"There is neither a template nor a file {target!r}.",
        why=f"Templates are {', '.join(NAMES)}.",
        do="Correct the name or the path.",
        code="E-PARAMETER",
    )


def is_template_call(value: Any) -> bool:
    """Return whether a plain value is the call of a template that there is."""
    if not isinstance(value, Mapping) or "nodes" in value or not isinstance(value.get("template"), str):
        return False
    return value["template"] in NAMES and isinstance(value.get("parameters") or {}, Mapping)


def parse_template_call(name: str, parameters: dict[str, Any]) -> ChainRequest:
    if name == JOB:
        spec = parse_chain({"dataset": {}, **parameters})
        job = JobSpec.model_validate(parameters).model_dump(mode="json", exclude_unset=True)
        return ChainRequest(spec=spec, deployment=JOB_DEPLOYMENT, parameters={"job": job})  # as its form names them
    fields = TEMPLATES[name].model.model_fields
    folders = {field: "." for field, info in fields.items() if str(info.default) == "."}
    named = name_current_folder({**folders, **parameters}, current_settings().working_folder)
    spec = parse_chain({"template": name, "parameters": named})
    return ChainRequest(spec=spec, deployment=f"{name}/local", parameters={key: named[key] for key in parameters})


def parse_chain(value: Any) -> ChainSpec:
    spec, _ = read_chain(value)
    if spec is None:
        raise Refused(check(value))  # the nodes that can be read are examined too
    return spec


def read_preset(name: str, preset: str) -> dict[str, Any]:
    """Return the parameters in `deployments/presets/<template>.<preset>.yaml`."""
    folder = checkout() / PRESETS
    path = folder / f"{name}.{preset}.yaml"
    if not path.is_file():
        presets = sorted(file.stem.partition(".")[2] for file in folder.glob(f"{name}.*.yaml"))
        raise NotFound(
            f"{name} has no preset {preset!r}.",
            why=f"It has: {', '.join(presets) or 'none'}.",
            do=f"Correct the name, or add {path.name} to {PRESETS}.",
            code="E-PARAMETER",
        )
    return dict(load_value(path))


def deep_merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, group by group; a stage or method of another type replaces the one below."""
    result = dict(below)
    for key, value in above.items():
        under: Any = spell_out({key: result[key]})[key] if key in result else None
        both = isinstance(value, Mapping) and isinstance(under, Mapping)
        same_type = both and value.get("type", under.get("type")) == under.get("type")
        result[key] = deep_merge(under, value) if same_type else value
    return result


class TemplateCall(Strict):
    """The call of a template with its parameters; the chain is built of it when it runs."""

    template: str = Field(description="Its name, such as qa-pipeline.")
    parameters: dict[str, Any] = Field({}, description="As `trainyard templates NAME` lists them.")


ChainBody = ChainSpec | JobSpec | TemplateCall
