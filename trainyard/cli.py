"""The command line: the operations of `api/operations.py`, one command each.

stdout is data, stderr is progress; `--json` prints the operation's result as one JSON document. Exit codes: 0 ok,
1 failed, 2 usage, 3 not found, 4 conflict, 5 invalid or corrupt data, 6 limit, 7 backend unavailable.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

import trainyard
from trainyard.api import terminal
from trainyard.api.operations import OPERATIONS, Context
from trainyard.api.records import RunState
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.inherited import keep_files_private, server_environment
from trainyard.serve.conversion.between import Layout
from trainyard.settings import settings
from trainyard.spec.axes import BackendName, Method, Stage

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None)
adapters = typer.Typer(no_args_is_help=True, help="The registry of deployed adapter versions.")
starter = typer.Typer(no_args_is_help=True, help="The small model that everything runs with by default.")
backends = typer.Typer(help=OPERATIONS["backends"].summary)
jobs = typer.Typer(no_args_is_help=True, help="Trainings: start, watch, pause, resume and cancel them.")
graph = typer.Typer(no_args_is_help=True, help="The knowledge graph that nights write.")
nightly = typer.Typer(no_args_is_help=True, help="The night: documents into the graph, work into adapters.")
corpus = typer.Typer(no_args_is_help=True, help="What people did, as tuples that nights train on.")
renderers = typer.Typer(no_args_is_help=True, help="How conversations become tokens.")
app.add_typer(adapters, name="adapters")
app.add_typer(backends, name="backends")
app.add_typer(jobs, name="jobs")
app.add_typer(graph, name="graph")
app.add_typer(nightly, name="nightly")
app.add_typer(corpus, name="corpus")
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
        tell = partial(print_part, verb, as_json)
        context = Context(settings(), say=progress.say, on_progress=progress.event, tell=tell)
        result = operation.do(operation.takes(**given), context)
    if getattr(result, "told", False):
        return result
    print(result.model_dump_json(indent=2) if as_json else terminal.render(verb, result))
    code = getattr(result, "exit_code", 0)
    if code:
        raise typer.Exit(code)
    return result


def print_part(verb: str, as_json: bool, part: BaseModel) -> None:
    """One part of a result that comes bit by bit; with `--json` each part is a line."""
    print(part.model_dump_json() if as_json else terminal.render(f"{verb} part", part), flush=True)


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
def up(
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Start the Prefect server without its login: for a machine of one user.")
    ] = False,
    as_json: Json = False,
) -> None:
    perform("up", as_json, no_auth=no_auth)


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


JobName = Annotated[str, typer.Argument(metavar="JOB", help="Id of a job, the beginning of one, or its name.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until its process has ended.")]


@jobs.command("create", help=OPERATIONS["jobs create"].summary)
def jobs_create(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A job: a data set and a trainer.")] = None,
    param: Parameters = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow it to its end.")] = False,
    as_json: Json = False,
) -> None:
    perform("jobs create", as_json, file=file, parameters=parsed(param), watch=watch)


@jobs.command("list", help=OPERATIONS["jobs list"].summary)
def jobs_list(
    state: Annotated[RunState | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.")] = 50,
    as_json: Json = False,
) -> None:
    perform("jobs list", as_json, state=state, limit=limit)


@jobs.command("show", help=OPERATIONS["jobs show"].summary)
def jobs_show(job: JobName, as_json: Json = False) -> None:
    perform("jobs show", as_json, job=job)


@jobs.command("logs", help=OPERATIONS["jobs logs"].summary)
def jobs_logs(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the job ends.")] = False,
    tail: Annotated[int | None, typer.Option(help="Only the last lines.")] = None,
    as_json: Json = False,
) -> None:
    perform("jobs logs", as_json, job=job, follow=follow, tail=tail)


@jobs.command("metrics", help=OPERATIONS["jobs metrics"].summary)
def jobs_metrics(
    job: JobName, node: Annotated[str | None, typer.Option(help="Only this trainer.")] = None, as_json: Json = False
) -> None:
    perform("jobs metrics", as_json, job=job, node=node)


@jobs.command("pause", help=OPERATIONS["jobs pause"].summary)
def jobs_pause(job: JobName, wait: Wait = True, as_json: Json = False) -> None:
    perform("jobs pause", as_json, job=job, wait=wait)


@jobs.command("resume", help=OPERATIONS["jobs resume"].summary)
def jobs_resume(
    job: JobName,
    param: Parameters = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow it to its end.")] = False,
    as_json: Json = False,
) -> None:
    perform("jobs resume", as_json, job=job, parameters=parsed(param), watch=watch)


@jobs.command("cancel", help=OPERATIONS["jobs cancel"].summary)
def jobs_cancel(job: JobName, wait: Wait = True, as_json: Json = False) -> None:
    perform("jobs cancel", as_json, job=job, wait=wait)


@adapters.command("list", help=OPERATIONS["adapters list"].summary)
def adapters_list(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None, as_json: Json = False
) -> None:
    perform("adapters list", as_json, tenant=tenant)


@adapters.command("show", help=OPERATIONS["adapters show"].summary)
def adapters_show(name: Annotated[str, typer.Argument(metavar="TENANT/ROLE[/vN]")], as_json: Json = False) -> None:
    perform("adapters show", as_json, name=name)


@adapters.command("convert", help=OPERATIONS["adapters convert"].summary)
def adapters_convert(
    source: Annotated[str, typer.Argument(help="A folder, a .gguf file, or TENANT/ROLE[/vN].")],
    target: Annotated[Path, typer.Argument(help="Folder or file to write; it must not exist.")],
    to: Annotated[Layout, typer.Option(help="Layout to write.")],
    base: Annotated[str | None, typer.Option(help="Its base model; default: the one that it names.")] = None,
    as_json: Json = False,
) -> None:
    perform("adapters convert", as_json, source=source, target=target, to=to, base=base)


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


Address = Annotated[str, typer.Option("--graph", help="A graph server or file:// address; default: this home's.")]


@graph.command("query", help=OPERATIONS["graph query"].summary)
def graph_query(cypher: str, param: Parameters = None, address: Address = "", as_json: Json = False) -> None:
    perform("graph query", as_json, cypher=cypher, parameters=parsed(param), graph=address)


@graph.command("stats", help=OPERATIONS["graph stats"].summary)
def graph_stats(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    address: Address = "",
    as_json: Json = False,
) -> None:
    perform("graph stats", as_json, tenant=tenant, graph=address)


@graph.command("export", help=OPERATIONS["graph export"].summary)
def graph_export(
    file: Path,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    address: Address = "",
    as_json: Json = False,
) -> None:
    perform("graph export", as_json, file=file, tenant=tenant, graph=address)


@app.command(help=OPERATIONS["serve"].summary)
def serve(
    *,
    role: Annotated[str, typer.Option(help="What to serve: graph.")] = "graph",
    host: Annotated[str, typer.Option(help="Another one than loopback needs TRAINYARD_TOKEN.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 9081,
    address: Address = "",
    as_json: Json = False,
) -> None:
    perform("serve", as_json, role=role, host=host, port=port, graph=address)


NightConfigFile = Annotated[Path | None, typer.Option("--config", help="YAML; default: nightly.yaml of the home.")]
NightPreset = Annotated[str | None, typer.Option(help="A night's preset of deployments/presets, such as nightly-l4.")]
Bucket = Annotated[str | None, typer.Option(help="A bucket of the config; default: the first of its kind.")]


@nightly.command("run", help=OPERATIONS["nightly run"].summary)
def nightly_run(
    *,
    config: NightConfigFile = None,
    preset: NightPreset = None,
    run: Annotated[str | None, typer.Option(help="The night's name; default: its date.")] = None,
    as_json: Json = False,
) -> None:
    perform("nightly run", as_json, config=config, preset=preset, run=run)


@nightly.command("simulate", help=OPERATIONS["nightly simulate"].summary)
def nightly_simulate(
    *,
    nights: Annotated[int, typer.Option(help="At least so many nights.")] = 1000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same nights.")] = 0,
    plant: Annotated[str | None, typer.Option(help="A mistake to put in, which has to be found.")] = None,
    processes: Annotated[int | None, typer.Option(help="Default: one per core.")] = None,
    campaign: Annotated[int | None, typer.Option(help="Replay the one campaign that has this seed.")] = None,
    as_json: Json = False,
) -> None:
    given = {"nights": nights, "seed": seed, "plant": plant, "processes": processes, "campaign": campaign}
    perform("nightly simulate", as_json, **given)


@nightly.command("worker", help=OPERATIONS["nightly worker"].summary)
def nightly_worker(
    config: NightConfigFile = None,
    preset: NightPreset = None,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    as_json: Json = False,
) -> None:
    perform("nightly worker", as_json, config=config, preset=preset, once=once)


@nightly.command("status", help=OPERATIONS["nightly status"].summary)
def nightly_status(config: NightConfigFile = None, preset: NightPreset = None, as_json: Json = False) -> None:
    perform("nightly status", as_json, config=config, preset=preset)


@corpus.command("engineering", help=OPERATIONS["corpus engineering"].summary)
def corpus_engineering(
    repo: Annotated[Path, typer.Option(help="A git repository.")],
    bucket: Bucket = None,
    briefs: Annotated[Path | None, typer.Option(help="JSON object: commit -> brief of its review.")] = None,
    config: NightConfigFile = None,
    as_json: Json = False,
) -> None:
    perform("corpus engineering", as_json, repo=repo, bucket=bucket, briefs=briefs, config=config)


@corpus.command("apprenticeship", help=OPERATIONS["corpus apprenticeship"].summary)
def corpus_apprenticeship(
    *,
    action: Annotated[str, typer.Argument(metavar="add", help="What to do: add.")] = "add",
    file: Annotated[Path | None, typer.Option(help="JSON lines {prompt, shadow, verdict}.")] = None,
    prompt: Annotated[str | None, typer.Option(help="What was asked.")] = None,
    shadow: Annotated[str | None, typer.Option(help="What the model said.")] = None,
    verdict: Annotated[str | None, typer.Option(help="What a person stands for.")] = None,
    bucket: Bucket = None,
    config: NightConfigFile = None,
    as_json: Json = False,
) -> None:
    if action != "add":
        raise typer.BadParameter("only `add` is known", param_hint="action")
    given = {"file": file, "prompt": prompt, "shadow": shadow, "verdict": verdict}
    perform("corpus apprenticeship", as_json, bucket=bucket, config=config, **given)


@corpus.command("status", help=OPERATIONS["corpus status"].summary)
def corpus_status(config: NightConfigFile = None, preset: NightPreset = None, as_json: Json = False) -> None:
    perform("corpus status", as_json, config=config, preset=preset)


@renderers.command("verify", help=OPERATIONS["renderers verify"].summary)
def renderers_verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Renderers, templates or .jinja files; default: all.")
    ] = None,
    as_json: Json = False,
) -> None:
    perform("renderers verify", as_json, names=tuple(names or ()))


@backends.callback(invoke_without_command=True)
def backends_table(
    context: typer.Context,
    imports: Annotated[bool, typer.Option("--imports/--no-imports", help="Run import tests that are due.")] = True,
    as_json: Json = False,
) -> None:
    if context.invoked_subcommand is None:
        perform("backends", as_json, imports=imports)


@backends.command("install", help=OPERATIONS["backends install"].summary)
def backends_install(
    names: Annotated[
        list[BackendName] | None, typer.Argument(metavar="NAME...", help="Trainers; default: all that need one.")
    ] = None,
    as_json: Json = False,
) -> None:
    perform("backends install", as_json, names=tuple(names or ()))


@app.command(help=OPERATIONS["eject"].summary)
def eject(
    target: Annotated[str, typer.Argument(metavar="JOB", help="A chain or job file, a template, or a run's id.")],
    node: Annotated[str | None, typer.Option(help="Which trainer, if there are several.")] = None,
    into: Annotated[Path | None, typer.Option(help="Folder to write; default: <trainer>-script here.")] = None,
    as_json: Json = False,
) -> None:
    perform("eject", as_json, target=target, node=node, into=into)


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


def shed_secrets() -> None:
    """Become the same command without the shell's secrets: the environment of a process can be read while it lives."""
    kept = server_environment()
    if set(os.environ) - set(kept):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], kept)


def main() -> None:
    """Entry point of the `trainyard` command. A user meets a message and an exit code, never a traceback."""
    keep_files_private()
    try:
        if sys.argv[1:2] == ["serve"]:
            shed_secrets()
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
