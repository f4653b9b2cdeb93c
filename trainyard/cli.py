"""The command line: the operations of `api/operations.py`, one command each.

stdout is data, stderr is progress; `--json` prints the operation's result as one JSON document. Exit codes: 0 ok,
1 failed, 2 usage, 3 not found, 4 conflict, 5 invalid or corrupt data, 6 limit, 7 backend unavailable.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

import trainyard
from trainyard.api import terminal
from trainyard.api.operations import OPERATIONS, Context
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.settings import settings
from trainyard.spec.axes import Method, Stage

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None)
adapters = typer.Typer(no_args_is_help=True, help="The registry of deployed adapter versions.")
starter = typer.Typer(no_args_is_help=True, help="The small model that everything runs with by default.")
renderers = typer.Typer(no_args_is_help=True, help="How conversations become tokens.")
app.add_typer(adapters, name="adapters")
app.add_typer(renderers, name="renderers")
app.add_typer(starter, name="starter")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Target = Annotated[str, typer.Argument(metavar="TEMPLATE|FILE", help="A template's name, or a chain or job file.")]
RunTarget = Annotated[
    str, typer.Argument(metavar="TEMPLATE|FILE|RUN", help="A template, a chain or job file, or an ended run.")
]
Preset = Annotated[str | None, typer.Option(help="Parameters from deployments/presets; -p wins over them.")]
Parameters = Annotated[
    list[str] | None, typer.Option("-p", "--param", metavar="KEY=VALUE", help="A parameter; dots reach inside.")
]


def perform(verb: str, as_json: bool, /, **given: Any) -> BaseModel:
    """Carry an operation out and print its result; errors become one message and an exit code in `main`."""
    operation = OPERATIONS[verb]
    with terminal.Progress() as progress:
        context = Context(settings(), say=progress.say, on_progress=progress.event)
        result = operation.do(operation.takes(**given), context)
    print(result.model_dump_json(indent=2) if as_json else terminal.render(verb, result))
    code = getattr(result, "exit_code", 0)
    if code:
        raise typer.Exit(code)
    return result


def version(wanted: bool) -> None:
    if wanted:
        print(trainyard.__version__)
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print it.")] = False,
) -> None:
    """LLM fine-tuning as typed chains on Prefect."""


@app.command(help=OPERATIONS["up"].summary)
def up(as_json: Json = False) -> None:
    perform("up", as_json)


@app.command(help=OPERATIONS["down"].summary)
def down(as_json: Json = False) -> None:
    perform("down", as_json)


@app.command(help=OPERATIONS["demo"].summary)
def demo(as_json: Json = False) -> None:
    perform("demo", as_json)


@app.command(help=OPERATIONS["env"].summary + ' Use: eval "$(trainyard env)"')
def env(as_json: Json = False) -> None:
    perform("env", as_json)


@app.command(help=OPERATIONS["doctor"].summary)
def doctor(as_json: Json = False) -> None:
    perform("doctor", as_json)


@app.command(help=OPERATIONS["check"].summary)
def check(files: Annotated[list[Path], typer.Argument(metavar="FILE...")], as_json: Json = False) -> None:
    perform("check", as_json, files=files)


@app.command(help=OPERATIONS["plan"].summary)
def plan(target: Target, param: Parameters = None, preset: Preset = None, as_json: Json = False) -> None:
    perform("plan", as_json, target=target, parameters=parsed(param), preset=preset)


@app.command(help=OPERATIONS["run"].summary)
def run(
    *,
    target: RunTarget,
    param: Parameters = None,
    preset: Preset = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the run to its end.")] = False,
    refresh: Annotated[bool, typer.Option(help="Make every result anew, also those that are finished.")] = False,
    tag: Annotated[list[str] | None, typer.Option(help="A tag for the run; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    given = {"target": target, "parameters": parsed(param), "preset": preset}
    perform("run", as_json, **given, watch=watch, refresh=refresh, tags=tuple(tag or ()))


@adapters.command("list", help=OPERATIONS["adapters list"].summary)
def adapters_list(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None, as_json: Json = False
) -> None:
    perform("adapters list", as_json, tenant=tenant)


@adapters.command("show", help=OPERATIONS["adapters show"].summary)
def adapters_show(name: Annotated[str, typer.Argument(metavar="TENANT/ROLE[/vN]")], as_json: Json = False) -> None:
    perform("adapters show", as_json, name=name)


@app.command("prove-resume", help=OPERATIONS["prove-resume"].summary)
def prove_resume(
    *,
    everything: Annotated[bool, typer.Option("--all", help="All seventy combinations of stage and method.")] = False,
    stage: Annotated[list[Stage] | None, typer.Option(help="Only this stage; may be repeated.")] = None,
    method: Annotated[list[Method] | None, typer.Option(help="Only this method; may be repeated.")] = None,
    jobs: Annotated[int, typer.Option(help="Combinations at a time.")] = 2,
    as_json: Json = False,
) -> None:
    given = {"stages": tuple(stage or ()), "methods": tuple(method or ()), "jobs": jobs}
    perform("prove-resume", as_json, everything=everything, **given)


@renderers.command("verify", help=OPERATIONS["renderers verify"].summary)
def renderers_verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Renderers, templates or .jinja files; default: all.")
    ] = None,
    as_json: Json = False,
) -> None:
    perform("renderers verify", as_json, names=tuple(names or ()))


@starter.command("build", help=OPERATIONS["starter build"].summary)
def starter_build(as_json: Json = False) -> None:
    perform("starter build", as_json)


def parsed(pairs: list[str] | None) -> dict[str, Any]:
    """`key=value` pairs as nested parameters: a value is JSON if it reads as JSON, else text; dots nest.

    Raises `InvalidInput` (`E-PARAMETER`) for a pair without `=`, or a key that is given both as a value and a group.
    """
    found: dict[str, Any] = {}
    for pair in pairs or ():
        key, sign, text = pair.partition("=")
        if not sign or not all(key.split(".")):
            raise InvalidInput(f"{pair!r} is not a parameter.", do="Write -p key=value.", code="E-PARAMETER")
        *groups, last = key.split(".")
        place = found
        for group in groups:
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                raise InvalidInput(f"{key!r} reaches inside a value.", do="Give one or the other.", code="E-PARAMETER")
        place[last] = value_of(text)
    return found


def value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    """Entry point of the `trainyard` command. A user meets a message and an exit code, never a traceback."""
    try:
        app()
    except TrainyardError as error:
        terminal.print_error(error, as_json="--json" in sys.argv)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if os.environ.get("TRAINYARD_DEBUG"):
            traceback.print_exc()
        print(f"E-BUG: {type(error).__name__}: {error}\nSet TRAINYARD_DEBUG=1 for the traceback.", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
