"""The folder that a script works in: the script, its spec and its rows; by hand and under supervision the same.

train.py      the script, a copy that may be edited
spec.json     what to train, in plain words: every value resolved, paths from this folder on or absolute
rows.jsonl    the training rows
output/       what it leaves: an adapter (PEFT files) or a model, and optionally report.json
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import orjson
from jinja2.exceptions import TemplateError

from trainyard.backends.job import TrainingJob
from trainyard.backends.rows import CHAT_FILE, write_chat_rows
from trainyard.backends.script.templates import BUILT_IN, template_path
from trainyard.data.paths import data_roots
from trainyard.data.renderers.choice import AUTO, choose_template
from trainyard.data.renderers.limited import is_known, open_limited
from trainyard.data.renderers.tokenizer import choose_for_tokenizer
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.loading import load_object
from trainyard.settings import settings as current_settings
from trainyard.spec.axes.stages import Stage
from trainyard.spec.migrate import group_settings
from trainyard.stores.models import base_modules, check_adapter_folder
from trainyard.stores.models import chat_template as own_template
from trainyard.stores.whole import write_json_durably

SCRIPT_FILE, SPEC_NAME, REPORT_FILE = "train.py", "spec.json", "report.json"
OUTPUT, CHECKPOINTS = "output", "checkpoints"
PROBE_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def plain_spec(job: TrainingJob) -> dict[str, object]:
    """Return the input of a script: a job without Trainyard's identifiers."""
    config = group_settings(job.config.model_dump(mode="json"))
    names = ("stage", "method", "hyperparameters", "lora", "preference", "quantization", "engine", "device", "control")
    return {
        **{name: config[name] for name in names},
        "base": job.base,
        "adapter": job.adapter,
        "chat_template": chat_template(job),
        "processes": job.config.launch.processes,
        "threads": job.threads,
        "rows": CHAT_FILE,
        "max_bad_fraction": job.config.refusal_limit,
        "output": OUTPUT,
        "output_kind": job.output.value,
        "checkpoints": CHECKPOINTS,
    }


def chat_template(job: TrainingJob) -> str | None:
    """The text of the chosen template, with what the tokenizer puts first; None where the tokenizer's own is used.

    Raises as `choose_template`.
    """
    name, roots, base = job.config.engine.template, data_roots(current_settings()), Path(job.base)
    if name == AUTO and (job.config.stage.type is Stage.CPT or (base.is_dir() and own_template(base))):
        return None
    try:
        tokenizer = load_object("transformers:AutoTokenizer").from_pretrained(job.base, trust_remote_code=False)
    except (OSError, ValueError):  # the script says so when it reads the tokenizer
        return None if name == AUTO else choose_template(name, roots=roots).text
    text = choose_for_tokenizer(tokenizer, name, roots=roots).text
    return None if text == tokenizer.chat_template else text


def write(job: TrainingJob, folder: Path, *, keep_work: bool) -> dict[str, int]:
    """Fill a folder; returns the counts of its rows. Without `keep_work` an existing folder is refused.

    Checkpoints and output that an earlier text of the script left are removed: they may mean something else now.
    Raises `InvalidInput` (`E-FILE-EXISTS`).
    """
    source = template_path(job.config.launch.script)
    script = folder / SCRIPT_FILE
    if folder.exists() and not keep_work:
        raise InvalidInput(
            f"{folder} exists already.",
            why="A script that you edited is not overwritten.",
            do="Name another folder, or remove this one.",
            code="E-FILE-EXISTS",
        )
    if script.is_file() and script.read_bytes() != source.read_bytes():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, script)
    counts = write_chat_rows(job, folder)
    if job.adapter is not None:
        check_adapter_folder(Path(job.adapter), base_modules(Path(job.base)) if Path(job.base).is_dir() else ())
    if source == BUILT_IN:
        try_template(job, folder / CHAT_FILE)
    write_json_durably(folder / SPEC_NAME, plain_spec(job))
    return counts


def try_template(job: TrainingJob, rows: Path) -> None:
    """Render every conversation that the script will render, under limits, unless the template is known.

    The script runs without this package, so it renders without limits. Raises `TemplateLimit` (`E-CHAT-TEMPLATE`).
    """
    base = Path(job.base)
    text = chat_template(job) or (own_template(base) if base.is_dir() else None)
    if text is None or is_known(text) or job.config.stage.type is Stage.CPT:
        return
    child = open_limited(text)
    with rows.open("rb") as lines:
        for row in map(orjson.loads, lines):
            for turns, ask in conversations(row):
                context = {"messages": turns, "tools": row.get("tools"), "add_generation_prompt": ask}
                with suppress(TemplateError):  # the script counts a row that the template refuses
                    child.render(orjson.dumps({**PROBE_TOKENS, **context}).decode())


def conversations(row: JsonObject) -> Iterator[tuple[list[JsonObject], bool]]:
    """Yield the conversations of a row that `standalone.py` renders, and whether each is to be answered."""
    if "messages" not in row:
        yield row["prompt"], True
        yield from (([*row["prompt"], *row[side]], False) for side in ("chosen", "rejected"))
        return
    turns = row["messages"]
    yield turns, False
    for at, turn in enumerate(turns):
        if turn["role"] == "assistant":
            yield from ((turns[:at], True), (turns[: at + 1], False))
