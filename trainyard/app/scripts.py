"""Training scripts of this home: list and read them, write one, and the script of a chain's trainer with its spec.

A chain is data, a script is code: `allow_scripts` lets chains run those that are here, and only with
`api_edit_scripts` a caller over a network writes one, with the scope admin.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

from trainyard.app.chains.eject import trainer_of
from trainyard.app.context import Context
from trainyard.app.plan.parse import NAMES, parse_request
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.reach import require_template
from trainyard.app.responses import Response
from trainyard.backends.job import prepare_job
from trainyard.backends.script import files
from trainyard.backends.script.backend import BACKEND as SCRIPT
from trainyard.backends.script.templates import BUILT_IN, TEMPLATES_FOLDER, template_path
from trainyard.errors import Conflict, Denied, InvalidInput, Refused
from trainyard.json_types import JsonObject
from trainyard.operations.backends import DraftScriptInput, SaveScriptInput, ScriptNameInput
from trainyard.operations.base import Nothing
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.training import TrainerConfig
from trainyard.stores.files import DISK
from trainyard.stores.whole import write_whole

BUILT_IN_NAME = "built-in"
MOST_BYTES = 256 << 10
"""Of a script that is shown or written."""


class TrainingScript(Response):
    """A script."""

    name: str
    bytes: int
    sha256: str
    changed: float | None
    """When it was written (seconds of the epoch); None for the built-in one."""


class TrainingScriptList(Response):
    scripts: tuple[TrainingScript, ...]
    folder: Path
    can_run: bool
    """Whether chains may run them (`allow_scripts`)."""
    can_edit: bool
    """Whether this caller may write them (`api_edit_scripts`, over a network)."""


class TrainingScriptText(TrainingScript):
    """A script with its text; `etag` goes into the next `scripts save` of it."""

    text: str
    etag: str


class ScriptDraft(Response):
    """Sources that a trainer runs as a script of its own: `python train.py spec.json` next to its rows."""

    node: str
    script: str
    """Name of the script."""
    text: str
    spec: JsonObject


def list_scripts(request: Nothing, context: Context) -> TrainingScriptList:
    settings, folder = context.settings, context.settings.home / TEMPLATES_FOLDER
    paths = [path for path in sorted(folder.glob("*.py")) if path.stem != BUILT_IN_NAME]
    return TrainingScriptList(
        scripts=(describe_script(BUILT_IN_NAME, BUILT_IN), *(describe_script(path.stem, path) for path in paths)),
        folder=folder,
        can_run=settings.allow_scripts,
        can_edit=settings.api_edit_scripts or not context.caller.remote,
    )


def describe_script(name: str, path: Path) -> TrainingScript:
    data = path.read_bytes()
    changed = None if path == BUILT_IN else path.stat().st_mtime
    return TrainingScript(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), changed=changed)


def find_script(name: str, settings: Settings) -> Path:
    return template_path(None if name == BUILT_IN_NAME else name, settings)


def show_script(request: ScriptNameInput, context: Context) -> TrainingScriptText:
    """Return a script. Raises `NotFound`, `InvalidInput` (`E-SCRIPT`), also for one that is too large to be shown."""
    path = find_script(request.name, context.settings)
    require_size(path.stat().st_size)
    facts = describe_script(request.name, path)
    text = path.read_text(encoding="utf-8", errors="replace")
    return TrainingScriptText(**facts.model_dump(), text=text, etag=facts.sha256[:16])


def require_size(size: int) -> None:
    if size > MOST_BYTES:
        raise InvalidInput(
            f"The script has {size:,} bytes.", why=f"At most {MOST_BYTES:,} are edited here.",
            do="Edit the file itself, or import a module from it.", code="E-SCRIPT",
        )  # fmt: skip


def save_script(request: SaveScriptInput, context: Context) -> TrainingScriptText:
    """Write a script, whole. Raises `Denied` (`E-SCRIPT`), `InvalidInput` (`E-SCRIPT`), `Conflict` (`E-SCRIPT`)."""
    settings = context.settings
    if context.caller.remote and not settings.api_edit_scripts:
        raise Denied(
            "Training scripts are not written over the API of this machine.", why="A script is code that it runs.",
            do="Let the operator set `api_edit_scripts = true` in trainyard.toml, or write the file there.",
            code="E-SCRIPT",
        )  # fmt: skip
    text = request.text if request.file is None else request.file.read_text(encoding="utf-8")
    require_size(len(text.encode()))
    require_python(text)
    if request.name == BUILT_IN_NAME:
        raise Conflict("The built-in script is not changed.", do="Save it under another name.", code="E-SCRIPT")
    path = settings.home / TEMPLATES_FOLDER / f"{request.name}.py"
    before = describe_script(request.name, path).sha256[:16] if path.is_file() else ""
    if before != request.if_match.strip('"') and (context.caller.remote or request.if_match):
        changed = "was written meanwhile" if before else "is not there any more"
        raise Conflict(
            f"The script {request.name} {changed}.", why="It is not the one that was read.",
            do="Read it again, then save.", code="E-SCRIPT",
        )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(DISK, path, text.encode())
    return show_script(ScriptNameInput(name=request.name), context)


def require_python(text: str) -> None:
    """Raise `InvalidInput` (`E-SCRIPT`) with the line for a text that is not Python. Nothing of it is executed."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise InvalidInput(
            f"The script is not valid Python: {getattr(error, 'msg', error)}{f', line {line}' if line else ''}.",
            do="Correct it.", code="E-SCRIPT",
        ) from error  # fmt: skip


def draft_script(request: DraftScriptInput, context: Context) -> ScriptDraft:
    """Return the script of a trainer and its spec; the rows are read when it runs.

    Raises `NotFound` (`E-NODE`), `Refused` (the built-in script does not carry out this training); over a network also
    `Denied` (`E-LOCAL`) for a file, which is not looked for.
    """
    if context.caller.remote:
        require_template(request.target, NAMES)
    chain = resolve_chain(parse_request(request.target, request.parameters).spec, context.settings)
    node = trainer_of(chain, request.node)
    config = node.config
    assert isinstance(config, TrainerConfig), "found by its type"
    script = config.launch.script if config.backend is BackendName.SCRIPT else None
    config = config.model_copy(
        update={"backend": BackendName.SCRIPT, "launch": config.launch.model_copy(update={"script": script})}
    )
    base = str(config.base_model or context.settings.default_base_model)
    job = prepare_job(config, base, context.settings, data={}, run=chain.digest[:12], node=node.id)
    if reasons := SCRIPT.reasons(job):
        raise Refused(reasons)
    text = find_script(script or BUILT_IN_NAME, context.settings).read_text(encoding="utf-8", errors="replace")
    return ScriptDraft(node=node.id, script=script or BUILT_IN_NAME, text=text, spec=files.plain_spec(job))
