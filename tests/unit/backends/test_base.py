"""The table of backends, jobs and their digests, and how a child's failure reaches the caller."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.small_jobs import Jobs, conversation, train_as_child
from trainyard.backends.base import load_program, probe_all
from trainyard.backends.job import TrainingJob
from trainyard.backends.programs import environment
from trainyard.backends.results import rebuild_error
from trainyard.backends.trl.backend import BACKEND
from trainyard.data.rows import write_rows
from trainyard.errors import InvalidInput, Refused, TrainyardError, Unavailable
from trainyard.spec.axes.backends import CLOUD_PROVIDERS, STEP_SERVICES, BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.training import TrainerConfig, resolve_trainer


def plain_job(**changes: Any) -> TrainingJob:
    config = resolve_trainer(TrainerConfig.model_validate({"backend": "trl"} | changes.pop("config", {})), "starter")
    fields: dict[str, Any] = {"data": {"sft": "data"}, "base": "models/starter", "base_sha256": "b", "locks": "locks"}
    return TrainingJob.model_validate({"config": config, **fields, **changes})


def test_native_and_trl_are_here_and_every_other_backend_says_why_not() -> None:
    probes = probe_all()
    assert probes[BackendName.NATIVE].available
    assert probes[BackendName.NATIVE].version == importlib.metadata.version("trainyard")
    assert probes[BackendName.TRL].available
    assert probes[BackendName.TRL].version.startswith("1.16")
    built_in = (BackendName.NATIVE, BackendName.TRL, *STEP_SERVICES, *CLOUD_PROVIDERS)  # their SDKs are in `dev`
    unavailable = [probed for name, probed in probes.items() if name not in built_in]
    assert len(unavailable) == len(BackendName) - len(built_in)
    assert all(probed.why and probed.fix and not probed.available for probed in unavailable)


def test_absent_backend_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        Unavailable, match=r"R-BACKEND-MISSING: The backend 'unsloth' .* Do: Run `trainyard backends install unsloth`"
    ):
        load_program(BackendName.UNSLOTH)


def test_parent_side_imports_no_torch() -> None:
    parents = "trainyard.backends.base, trainyard.backends.native, trainyard.backends.trl"
    code = f"import sys, {parents}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("config", "code", "instead"),
    [
        ({"adapter": "stack"}, "R-BACKEND-SETTING", "Use continue, or backend native."),
        ({"adapter": "merge"}, "R-BACKEND-SETTING", "Use continue, or backend native."),
        ({"method": "full"}, "R-ADAPTER", "Use the method of the earlier trainer."),
    ],
)
def test_earlier_adapter_can_only_be_continued(config: dict[str, Any], code: str, instead: str) -> None:
    (reason,) = BACKEND.reasons(plain_job(config=config, adapter="adapters/one"))
    assert (reason.code, reason.instead) == (code, instead)


def test_digest_names_the_content_and_not_the_place_or_the_run() -> None:
    data = {"data_sha256": {"sft": "d"}}
    job = plain_job(**data)
    elsewhere = plain_job(**data | {"data": {"sft": "other"}, "base": "x", "locks": "y", "run": "2", "threads": 4})
    assert job.digest == elsewhere.digest
    assert job.digest != plain_job(**data | {"data_sha256": {"sft": "e"}}).digest
    assert job.digest != plain_job(**data | {"base_sha256": "c"}).digest
    assert job.digest != plain_job(**data | {"config": {"hyperparameters": {"seed": 1}}}).digest
    assert job.digest != plain_job(**data | {"parents": ("p",), "adapter": "a"}).digest
    assert plain_job(run="1").digest == plain_job(run="2").digest == plain_job(devices=(2, 3)).digest
    fresh = {"config": {"reuse": False}}
    assert plain_job(run="1", **fresh).digest != plain_job(run="2", **fresh).digest
    assert plain_job(base_sha256="").digest != plain_job(base_sha256="", base="models/other").digest


def test_program_and_environment_of_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    job = plain_job(threads=3, base=str(tmp_path))
    assert BACKEND.command(job, tmp_path)[1:] == [
        "-P",
        "-m",
        "trainyard.compute.launch",
        "trainyard.backends.trl.program:train",
        str(tmp_path),
    ]
    variables = environment(job)
    assert (variables["OMP_NUM_THREADS"], variables["HF_HUB_OFFLINE"]) == ("3", "1")
    assert variables["CUDA_VISIBLE_DEVICES"] == "0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert "CUDA_VISIBLE_DEVICES" not in environment(job)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert environment(plain_job(devices=(3,)))["CUDA_VISIBLE_DEVICES"] == "3"
    assert "HF_HUB_OFFLINE" not in environment(plain_job(base="org/model"))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"kind": "InvalidInput", "code": "E-X", "what": "w", "why": "y", "do": "see child.log"}, InvalidInput),
        ({"kind": "NoSuchClass", "code": "E-X", "what": "w", "why": "", "do": ""}, TrainyardError),
        ({"kind": "Reason", "code": "E-X", "what": "w", "why": "", "do": ""}, TrainyardError),
    ],
)
def test_error_of_the_child_keeps_its_class_and_names_the_log(
    error: dict[str, Any], kind: type[TrainyardError], tmp_path: Path
) -> None:
    built = rebuild_error(error, tmp_path)
    assert type(built) is kind
    assert (built.code, built.what) == ("E-X", "w")
    if error["do"]:
        assert built.do == f"see {tmp_path / 'child.log'}"


def test_refusal_of_the_child_keeps_its_reasons(tmp_path: Path) -> None:
    reason = {"code": "R-Y", "node": None, "field": "config.x", "because": "b", "instead": "i"}
    built = rebuild_error({"kind": "Refused", "code": "R-Y", "what": "w", "reasons": [reason]}, tmp_path)
    assert isinstance(built, Refused)
    assert built.reasons[0].field == "config.x"


def test_refused_job_starts_no_child(jobs: Jobs, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="R-BACKEND-SETTING"):
        train_as_child(jobs(stage="cpt"), tmp_path)
    assert not (tmp_path / "home" / "runs").exists()


@pytest.mark.slow
def test_data_without_a_token_to_learn_fails_the_run(jobs: Jobs, tmp_path: Path) -> None:
    """Through the supervised child, as a chain meets it."""
    write_rows(tmp_path / "data" / "rows.arrow", Port.SFT, [conversation("a very long question " * 20, "lost")])
    job = jobs().model_copy(update={"data": {Port.SFT: str(tmp_path / "data")}})
    with pytest.raises(InvalidInput, match=r"E-DATA-EMPTY: All labels of the data set are masked: none of 1 rows"):
        train_as_child(job, tmp_path)
    assert not (tmp_path / "out").exists()
