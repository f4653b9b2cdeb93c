"""Chat templates that write the date: a training that continues on another day has the rows of its first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.small_jobs import Jobs
from trainyard.backends.base import run_training, work_folder
from trainyard.backends.job import TrainingJob
from trainyard.backends.recipe import describe_reproduction, read_recipe, recipe_file
from trainyard.data.renderers.choice import list_shipped
from trainyard.data.renderers.day import DAY
from trainyard.data.renderers.limited import open_limited
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.tokenizer import load_tokenizer
from trainyard.errors import TrainyardError
from trainyard.settings import Settings, load_settings

DATED = "{{ strftime_now('%d %B %Y') }}"
FIRST, NEXT = "2026-03-31", "2026-04-01"


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home", threads=1)


@pytest.fixture
def dated_job(jobs: Jobs, tiny_model: Path, tmp_path: Path) -> TrainingJob:
    """A job on a base whose template begins each chat with the date."""
    base = shutil.copytree(tiny_model, tmp_path / "dated")
    template = base / "chat_template.jinja"
    template.write_text(DATED + template.read_text(encoding="utf-8"), encoding="utf-8")
    return jobs(backend="native", device="cpu", base=base, hyperparameters={"max_steps": 6, "save_steps": 2})


def train(job: TrainingJob, folder: Path, here: Settings) -> dict[str, object]:
    """The record of a training in its own process, with what its ledger of tokens counts."""
    run_training(job, folder, settings=here)
    record: dict[str, object] = json.loads((folder / "adapter" / "training.json").read_text(encoding="utf-8"))
    return record


def test_a_training_that_continues_on_another_day_has_the_same_bits(
    dated_job: TrainingJob, here: Settings, tmp_path: Path
) -> None:
    whole = train(dated_job.model_copy(update={"template_day": FIRST, "run": "whole"}), tmp_path / "whole", here)
    other = train(dated_job.model_copy(update={"template_day": NEXT, "run": "other"}), tmp_path / "other", here)
    assert whole["losses"] != other["losses"], "the day is a part of the rows"
    parts = dated_job.model_copy(update={"run": "parts"})
    with pytest.raises(TrainyardError):
        run_training(parts.model_copy(update={"template_day": FIRST, "until": 3}), tmp_path / "parts", settings=here)
    resumed = train(parts, tmp_path / "parts", here)  # as on a later day: its own day would be today
    assert (resumed["template_day"], resumed["losses"]) == (FIRST, whole["losses"])


def test_a_template_without_a_date_leaves_no_day_in_the_record(jobs: Jobs, here: Settings, tmp_path: Path) -> None:
    job = jobs(backend="native", device="cpu", hyperparameters={"max_steps": 2})
    assert "template_day" not in train(job, tmp_path / "plain", here)
    assert '"template_day"' in (work_folder(job, here) / "spec.json").read_text(encoding="utf-8")


@pytest.fixture
def first_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DAY, "fixed", FIRST)
    monkeypatch.setattr(DAY, "is_written", False)


@pytest.mark.usefixtures("first_day")
def test_known_and_unknown_templates_write_the_fixed_day(tiny_model: Path) -> None:
    child = open_limited(DATED)
    assert child.render("{}") == "31 March 2026"
    assert DAY.is_written
    tokenizer = load_tokenizer(str(tiny_model))
    tokenizer.chat_template = list_shipped()["gptoss"].read_text(encoding="utf-8")
    assert FIRST in Renderer(tokenizer).text([{"role": "user", "content": "Hello"}], ask=True)


def test_a_recipe_names_the_day_of_its_rows(dated_job: TrainingJob, here: Settings, tmp_path: Path) -> None:
    record = train(dated_job.model_copy(update={"template_day": FIRST}), tmp_path / "first", here)
    fields = describe_reproduction(dated_job, record, tmp_path / "first" / "adapter", here, inputs={})
    recipe = read_recipe(recipe_file(here.home, fields["recipe_sha256"]), fields["recipe_sha256"])
    assert recipe.job["template_day"] == FIRST
