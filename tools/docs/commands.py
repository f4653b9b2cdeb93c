"""The page of commands, from the table of operations."""

from __future__ import annotations

from itertools import groupby

import click

from tools.docs.markdown import cell, code, listed, page, table
from trainyard.operations.table import OPERATIONS
from trainyard.surfaces.cli.main import JSON_OPTION, PROGRAM, build_parameters


def cli_page() -> str:
    groups = groupby(OPERATIONS, key=lambda name: name.split()[0])
    parts = [part for word, names in groups for part in (f"## {word}", *map(operation_text, names))]
    introduction = (
        f"Every command of `{PROGRAM}`, from the table of operations. Each prints one JSON document with `--json`. The "
        "[command line](../cli.md) page explains exit codes, parameters and completion."
    )
    return page("Commands", introduction, parts)


def operation_text(name: str) -> str:
    operation = OPERATIONS[name]
    parameters = [parameter for parameter in build_parameters(name) if parameter.name != JSON_OPTION]
    usage = " ".join(
        [PROGRAM, name, *map(usage_of, sorted(parameters, key=lambda parameter: parameter.param_type_name))]
    )
    example = f"\n\n    {operation.example}" if operation.example else ""
    rows = [
        [cell(code(name_of(parameter))), cell(help_of(parameter)), default_text(parameter)] for parameter in parameters
    ]
    options = f"\n\n{table(['parameter', 'what it is', 'default'], rows)}" if rows else ""
    return f"    {usage}\n\n{operation.summary} Scope: {operation.scope}.{example}{options}"


def name_of(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return str(parameter.metavar)
    names = ", ".join(parameter.opts)
    names += f" / {', '.join(parameter.secondary_opts)}" if parameter.secondary_opts else ""
    flag = getattr(parameter, "is_flag", False)
    return names if flag else f"{names} {parameter.metavar}"


def usage_of(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        text = str(parameter.metavar)
    else:
        text = (
            parameter.opts[-1] if getattr(parameter, "is_flag", False) else f"{parameter.opts[-1]} {parameter.metavar}"
        )
    text = text if parameter.required else f"[{text}]"
    return f"{text}..." if parameter.multiple or parameter.nargs == -1 else text


def help_of(parameter: click.Parameter) -> str:
    choices = list(parameter.type.choices) if isinstance(parameter.type, click.Choice) else []
    text = getattr(parameter, "help", None) or ""
    return f"{text} One of {listed(choices)}.".strip() if choices and isinstance(parameter, click.Argument) else text


def default_text(parameter: click.Parameter) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if isinstance(value, bool):
        return code(str(value).lower())
    return cell(code(value)) if isinstance(value, str | int) and value != "" else "–"
