"""Completion of commands: which shell is running, where it reads its completion script from, and names to complete.

Names are read from the files of the home and of the project: no server is asked, and no module imported that is slow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from trainyard.errors import InvalidInput
from trainyard.locations import home_from_environment, project_folder

PLACES = {
    "bash": (".bash_completions/{program}.sh", ".bashrc", "source '{path}'"),
    "zsh": (".zfunc/_{program}", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/{program}.fish", "", ""),
}
"""Shell -> its script below the user's folder, the file that it reads when it starts, and the line needed there."""


def find_shell() -> str:
    """Return the shell that this process was started from, else the user's own."""
    names = (parent.name().removeprefix("-") for parent in psutil.Process().parents())
    return next((name for name in names if name in PLACES), Path(os.environ.get("SHELL", "bash")).name)


def install(program: str, shell: str, script: str) -> Path:
    """Write the script where the shell finds it. Raises `InvalidInput` (`E-PARAMETER`) if there is none."""
    if shell not in PLACES:
        do = f"Put the text of `{program} --show-completion` where {shell} finds it."
        raise InvalidInput(f"Completion cannot be installed for {shell}.", do=do, code="E-PARAMETER")
    location, start, line = (part.format(program=program, path="{path}") for part in PLACES[shell])
    path = Path.home() / location
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    if start:
        read, source_line = Path.home() / start, line.format(path=path)
        text = read.read_text(encoding="utf-8") if read.is_file() else ""
        if source_line not in text.splitlines():
            read.write_text(f"{text.rstrip()}\n{source_line}\n".lstrip(), encoding="utf-8")
    return path


MOST_RUNS = 50
RUN_ID_LENGTH = 36


def list_names(kind: str, arguments: Sequence[str]) -> list[str]:
    """Return what there is of a kind; `arguments` has the words of the command before the one that is completed."""
    return list(dict.fromkeys(KNOWN[kind](arguments)))


def recent_runs(_arguments: Sequence[str]) -> Iterator[str]:
    """Ids of runs, the newest first."""
    folder = home_from_environment() / "runs"
    paths = [path for path in folder.glob("*") if len(path.name) == RUN_ID_LENGTH]
    yield from (path.name for path in sorted(paths, key=lambda path: -path.stat().st_mtime)[:MOST_RUNS])


def run_names(arguments: Sequence[str]) -> Iterator[str]:
    """Ids of runs, the newest first, then the names that they were given."""
    ids = list(recent_runs(arguments))
    yield from ids
    for run_id in ids:
        try:
            chain = json.loads((home_from_environment() / "runs" / run_id / "chain.json").read_bytes())
        except (OSError, ValueError):  # a run that has not begun
            continue
        if isinstance(chain, dict) and isinstance(chain.get("name"), str):
            yield chain["name"]


def chain_names(_arguments: Sequence[str]) -> Iterator[str]:
    from trainyard.stores.chain_revisions import ChainStore  # a completion of other words does not need it

    store = ChainStore(home_from_environment() / "chains")
    for chain in store.list():
        yield from (chain.name, chain.id)


def night_names(_arguments: Sequence[str]) -> Iterator[str]:
    yield from sorted({path.name for path in home_from_environment().glob("tenants/*/nights/*")}, reverse=True)


def adapter_names(_arguments: Sequence[str]) -> Iterator[str]:
    """TENANT/ROLE, then each of its versions."""
    root = home_from_environment() / "adapters"
    for role in sorted(root.glob("*/*")):
        versions = sorted(role.glob("v*/manifest.json"), key=lambda path: (len(path.parent.name), path.parent.name))
        name = role.relative_to(root).as_posix()
        yield from ((name, *(f"{name}/{path.parent.name}" for path in versions)) if versions else ())


def tenant_names(_arguments: Sequence[str]) -> Iterator[str]:
    home = home_from_environment()
    yield from sorted(path.name for folder in ("adapters", "tenants") for path in home.glob(f"{folder}/*"))


def sweep_names(_arguments: Sequence[str]) -> Iterator[str]:
    yield from sorted(path.parent.name for path in home_from_environment().glob("sweeps/*/sweep.json"))


def session_ids(_arguments: Sequence[str]) -> Iterator[str]:
    yield from sorted(path.parent.name for path in home_from_environment().glob("sessions/*/session.json"))


def template_presets(arguments: Sequence[str]) -> Iterator[str]:
    """Presets of the template that was given, or of all: deployments/presets/TEMPLATE.PRESET.yaml."""
    pairs = [name.split(".", 1) for name in sorted(presets()) if "." in name]
    from trainyard.spec.templates import TEMPLATES  # a completion of other words does not need it

    template_names = [word for word in arguments if word in TEMPLATES]
    yield from (preset for template, preset in pairs if not template_names or template in template_names)


def night_presets(_arguments: Sequence[str]) -> Iterator[str]:
    yield from (name for name in sorted(presets()) if "." not in name)


def presets() -> list[str]:
    return [path.stem for path in (project_folder() / "deployments" / "presets").glob("*.yaml")]


def templates(_arguments: Sequence[str]) -> Iterator[str]:
    from trainyard.spec.templates import TEMPLATES  # a completion of other words does not need it

    yield from TEMPLATES


def templates_and_runs(arguments: Sequence[str]) -> Iterator[str]:
    yield from templates(arguments)
    yield from run_names(arguments)


def schemas(_arguments: Sequence[str]) -> Iterator[str]:
    from trainyard.app.chains.describe import SCHEMAS  # a completion of other words does not need it

    yield from SCHEMAS


def upload_names(_arguments: Sequence[str]) -> Iterator[str]:
    paths = home_from_environment().glob("tenants/*/uploads/*")
    yield from sorted(entry.name for entry in paths if not entry.name.startswith("."))


KNOWN: dict[str, Callable[[Sequence[str]], Iterator[str]]] = {
    "adapter": adapter_names,
    "night preset": night_presets,
    "preset": template_presets,
    "sweep": sweep_names,
    "session": session_ids,
    "run": run_names,
    "chain": chain_names,
    "night": night_names,
    "schema": schemas,
    "template": templates,
    "template or run": templates_and_runs,
    "tenant": tenant_names,
    "upload": upload_names,
}
