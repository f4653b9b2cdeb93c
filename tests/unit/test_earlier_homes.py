"""A home that an earlier version wrote is read by this one.

`tests/resources/homes/4b25bfd.tar.gz` was written below `/srv/trainyard` by the commit of that name: a training paused
at step 4 of 12 with the digest of the adapter that the same training left when it was not paused, a deployed adapter,
and one night (`tools.night_program`) with its state.
"""

from __future__ import annotations

import json
import logging
import tarfile
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from nodes.runner import NodeContext, RunInfo
from nodes.trainer import require_same
from tests.conftest import REPOSITORY
from tools import night_program
from trainyard.app.context import Context
from trainyard.app.run_records import RunRecord
from trainyard.app.stack.stack import migrate
from trainyard.backends.base import run_training
from trainyard.backends.job import TrainingJob
from trainyard.backends.manager import TrainingManager
from trainyard.compute.child import SPEC_FILE
from trainyard.compute.events import Event
from trainyard.errors import Conflict
from trainyard.night.phases import run_night
from trainyard.operations.stack import MigrateInput
from trainyard.settings import load_settings
from trainyard.spec.chain import ResolvedNode
from trainyard.spec.states import JobState
from trainyard.stores.adapters import AdapterRegistry

WRITTEN_BELOW = "/srv/trainyard"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The unpacked folder, with the places in its specs and records moved to where it is.

    The config of the paused training keeps its `base_model`, whose digest is in the checkpoint.
    """
    folder = tmp_path / "earlier"
    with tarfile.open(REPOSITORY / "tests" / "resources" / "homes" / "4b25bfd.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    for path in (*folder.glob("home/jobs/*.json"), *folder.glob("home/runs/training/*/spec.json")):
        text = path.read_text().replace(WRITTEN_BELOW, str(folder))
        path.write_text(text.replace(f'  "base_model": "{folder}', f'  "base_model": "{WRITTEN_BELOW}'))
    return folder


@pytest.mark.filterwarnings("ignore::FutureWarning")  # between peft and transformers
def test_an_earlier_adapter_is_whole_and_loads(earlier: Path) -> None:
    registry = AdapterRegistry(earlier / "home" / "adapters")
    (version,) = registry.list()
    assert (version.name, registry.live("acme", "helper").version) == ("acme/helper/v1", 1)
    registry.verify(version)
    base = AutoModelForCausalLM.from_pretrained(earlier / "model")
    assert PeftModel.from_pretrained(base, registry.path(version)).peft_config["default"].r == 2


def test_an_earlier_job_is_listed_with_its_progress(earlier: Path) -> None:
    manager = TrainingManager(load_settings(home=earlier / "home"))
    (record,) = manager.list_jobs(JobState.PAUSED)
    status = manager.status(record.id)
    assert (record.name, status.state, status.reason) == ("paused", JobState.PAUSED, "pause")
    assert (status.progress.step, status.progress.total_steps) == (3, 12)
    assert [point.step for point in manager.curve(record.id)] == [1, 2, 3]


def test_an_earlier_night_is_read_and_not_repeated(earlier: Path) -> None:
    folder = earlier / "night"
    assert night_program.state(folder) == json.loads((earlier / "night-state.json").read_text())
    again = night_program.run(folder)
    assert (again.state, again.skipped) == ("skipped", "this night is done already")
    following = run_night(night_program.config(), night_program.world(folder), "20270103")
    assert (following.state, following.phase2.trainings) == ("completed", ())
    # The rules have a new version since, so the documents are read again, and add nothing.
    assert (following.phase1.done, following.phase1.new_entities, following.phase1.new_relations) == (2, 0, 0)


def test_migrate_renames_work_folders_once_and_shows_it_before(earlier: Path) -> None:
    context = Context(load_settings(home=earlier / "home"), say=lambda _text: None)
    (work,) = context.settings.runs.glob("training/*")
    preview = migrate(MigrateInput(dry_run=True), context)
    assert [folder.before for folder in preview.folders] == [str(work)]
    assert {item.kind for item in preview.earlier} == {"adapter", "job", "live"}
    assert work.is_dir()
    assert migrate(MigrateInput(), context).folders == preview.folders
    assert [str(path) for path in context.settings.runs.glob("training/*")] == [preview.folders[0].now]
    assert migrate(MigrateInput(), context).folders == ()


def test_an_earlier_paused_training_continues_and_ends_where_one_that_was_not_paused_did(earlier: Path) -> None:
    settings = load_settings(home=earlier / "home")
    (work,) = settings.runs.glob("training/*")
    job = TrainingJob.model_validate_json((work / SPEC_FILE).read_bytes())
    assert job.digest[:32] != work.name, "the digest is still the one of that commit: nothing is tested"
    events: list[Event] = []
    run_training(job, earlier / "out", settings=settings, on_event=events.append, poll_s=0.05)
    assert {"event": "adopted_work", "earlier": work.name, "work": job.digest[:32]} in events
    assert [event["step"] for event in events if event["event"] == "progress"] == list(range(4, 13))
    (version,) = AdapterRegistry(earlier / "home" / "adapters").list()
    never_paused = load_file(earlier / "home" / "adapters" / "acme" / "helper" / "v1" / "adapter_model.safetensors")
    assert version.run_key == "4b25bfd"
    continued = load_file(earlier / "out" / "adapter" / "adapter_model.safetensors")
    # Equal to the bit on the processor that wrote the home; other processors add in another order.
    torch.testing.assert_close(continued, never_paused, rtol=1e-3, atol=1e-4)


def test_a_run_knows_the_job_that_an_earlier_version_named_by_another_digest(earlier: Path, tmp_path: Path) -> None:
    settings = load_settings(home=earlier / "home")
    (work,) = settings.runs.glob("training/*")
    job = TrainingJob.model_validate_json((work / SPEC_FILE).read_bytes())
    record = RunRecord(tmp_path / "run")
    record.begin({})
    record.emit("trainer", "job", digest=work.name, folder=str(work))
    node = ResolvedNode(id="trainer", type="trainer", config=job.config)
    run = RunInfo("a-run", "chain", "default", str(tmp_path / "run"))
    context = NodeContext(node, {}, run, settings, record, logging.getLogger(__name__))
    require_same(context, job)
    hyper = job.config.hyperparameters.model_copy(update={"weight_decay": 0.5})
    other = job.model_copy(update={"config": job.config.model_copy(update={"hyperparameters": hyper})})
    with pytest.raises(Conflict, match=r"settings: config\.hyperparameters\.weight_decay: 0\.0 before, 0\.5 now\."):
        require_same(context, other)
