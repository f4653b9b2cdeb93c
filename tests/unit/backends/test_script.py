"""Scripts of one's own: the built-in one, the contract, and scripts that misbehave."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from tests.small_jobs import Jobs, Ran, train_as_child
from trainyard import settings as settings_module
from trainyard.backends.base import probe
from trainyard.backends.job import TrainingJob
from trainyard.backends.results import TrainingStopped
from trainyard.backends.script import files, templates
from trainyard.backends.script.backend import BACKEND
from trainyard.backends.script.program import shorten
from trainyard.compute.child import alive
from trainyard.compute.supervise import DesiredState
from trainyard.errors import InvalidInput, NotFound, Refused, TrainyardError, Unavailable
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port

pytestmark = pytest.mark.integration

RESULT = """
import json, os, sys
from pathlib import Path
spec = json.loads(Path(sys.argv[1]).read_text())
def tell(event, **fields):
    with open(os.environ["TRAINYARD_EVENTS"], "a") as stream:
        stream.write(json.dumps({"event": event, "time": 0, **fields}) + "\\n")
def leave():
    output = Path(spec["output"]); output.mkdir()
    (output / "adapter_config.json").write_text("{}")
    (output / "adapter_model.safetensors").write_bytes(b"\\x02\\0\\0\\0\\0\\0\\0\\0{}")
"""


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and alive(psutil.Process(pid))


@pytest.fixture
def allowed(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose operator allows scripts; returns its folder of templates."""
    monkeypatch.setenv("TRAINYARD_ALLOW_SCRIPTS", "true")
    settings_module.settings.cache_clear()
    folder = home / templates.TEMPLATES_FOLDER
    folder.mkdir(parents=True)
    return folder


def run(job: TrainingJob, tmp_path: Path, **options: Any) -> Ran:
    return train_as_child(job, tmp_path, **options)


@pytest.fixture
def script_job(allowed: Path, jobs: Jobs) -> Callable[[str], TrainingJob]:
    """A job that runs a script of this text."""

    def make(text: str, **config: Any) -> TrainingJob:
        (allowed / "mine.py").write_text(RESULT + text)
        return jobs(backend="script", launch={"script": "mine"}, **config)

    return make


def test_scripts_are_off_unless_the_operator_allows_them(jobs: Jobs, tmp_path: Path) -> None:
    probe_result = probe(BackendName.SCRIPT)
    assert (probe_result.available, probe_result.code) == (False, "R-SCRIPT-OFF")
    with pytest.raises(Unavailable, match=r"R-SCRIPT-OFF: .* switched off.* Do: .*allow_scripts = true"):
        run(jobs(backend="script"), tmp_path)
    assert not (tmp_path / "home" / "runs").exists()


def test_the_operator_runs_scripts_with_limits(
    script_job: Callable[[str], TrainingJob], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
import resource
tell("progress", step=1, loss=float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
leave()
"""
    (home / "trainyard.toml").write_text('script_wrapper = ["prlimit", "--nofile=123"]\n')
    settings_module.settings.cache_clear()
    ran = run(script_job(text), tmp_path)
    assert ran.record["final_loss"] == 123.0
    (program,) = ran.of("program")
    assert program["argv"][:2] == ["prlimit", "--nofile=123"]
    monkeypatch.setenv("TRAINYARD_SCRIPT_WRAPPER", '["not-installed-here"]')
    settings_module.settings.cache_clear()
    probe_result = probe(BackendName.SCRIPT)
    assert not probe_result.available
    assert "'not-installed-here'" in probe_result.why
    assert "script_wrapper" in probe_result.fix


@pytest.mark.slow
def test_the_built_in_script_trains_an_adapter(allowed: Path, jobs: Jobs, tmp_path: Path) -> None:
    ran = run(jobs(backend="script", hyperparameters={"max_steps": 6}), tmp_path)
    assert ran.record["final_loss"] < ran.record["first_loss"]
    tokens = ran.record["data"]["tokens"]
    assert tokens["read"] == sum(tokens[name] for name in ("trained", "masked", "truncated", "dropped"))
    assert tokens["trained"] > 0
    assert (ran.record["script"], ran.record["steps"], len(ran.record["losses"])) == ("built-in", 6, 6)
    assert (ran.folder / "tokenizer" / "tokenizer.json").is_file()
    assert any("lora_A" in name for name in load_file(ran.folder / "adapter_model.safetensors"))
    (program,) = ran.of("program")
    assert program["argv"][1:] == ["train.py", "spec.json"]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"stage": "kto"}, "stage"),
        ({"method": "qlora", "quantization": "nf4"}, "method"),
        ({"hyperparameters": {"optimizer": "muon"}}, "hyperparameters.optimizer"),
        ({"stage": {"type": "dpo", "loss": "simpo"}}, "stage.loss"),
    ],
)
def test_what_the_built_in_script_lacks_your_own_may_have(
    config: dict[str, Any], field: str, allowed: Path, jobs: Jobs
) -> None:
    (reason,) = BACKEND.reasons(jobs(backend="script", **config))
    assert (reason.code, reason.field) == ("R-BACKEND-SETTING", f"config.{field}")
    (allowed / "mine.py").touch()
    assert BACKEND.reasons(jobs(backend="script", launch={"script": "mine"}, **config)) == []


@pytest.mark.parametrize(
    ("name", "error", "pattern"),
    [
        ("absent", NotFound, "E-SCRIPT: There is no script template 'absent'"),
        ("../evil", InvalidInput, "E-SCRIPT: '../evil' is not the name"),
        ("a/b", InvalidInput, "E-SCRIPT"),
    ],
)
def test_a_template_is_a_name_and_no_path(name: str, error: type[Exception], pattern: str, allowed: Path) -> None:
    with pytest.raises(error, match=pattern):
        templates.template_path(name)


def test_a_script_without_its_template_starts_nothing(allowed: Path, jobs: Jobs, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="E-SCRIPT"):
        run(jobs(backend="script", launch={"script": "absent"}), tmp_path)


def test_own_script_needs_only_weights_and_a_told_loss(script_job: Callable[..., TrainingJob], tmp_path: Path) -> None:
    ran = run(script_job("tell('progress', step=1, loss=2.5, learning_rate=0.1); tell('done'); leave()"), tmp_path)
    assert ran.record["losses"] == [[1, 2.5, 0.1]]
    assert (ran.record["precision"], ran.record["counted"]) == ("unknown", "nothing")
    assert "print" not in ran.record["log_head"]
    assert len(ran.of("done")) == 1  # the runner's; a script cannot say it for itself


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("tell('progress', step=1, loss=2.5)", r"E-SCRIPT: .* left no output/adapter_config.json"),
        ("leave()", r"E-SCRIPT: .* reported no step"),
        pytest.param(
            "leave(); open('output/report.json', 'w').write('{')",
            r"E-SCRIPT: .* not valid JSON",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "raise ValueError('my own mistake')",
            r"E-SCRIPT: .* exit code 1\. Why: ValueError: my own mistake",
            marks=pytest.mark.slow,
        ),
        ("os.kill(os.getpid(), 9)", r"E-SCRIPT: The training script was ended by SIGKILL"),
        pytest.param("1 +", r"E-SCRIPT: .*SyntaxError", marks=pytest.mark.slow),
    ],
)
def test_a_script_that_fails_says_why(
    text: str, pattern: str, script_job: Callable[..., TrainingJob], tmp_path: Path
) -> None:
    with pytest.raises(TrainyardError, match=pattern):
        run(script_job(text), tmp_path)


def test_a_script_that_ignores_the_request_is_killed_after_the_grace(
    script_job: Callable[..., TrainingJob], tmp_path: Path
) -> None:
    text = "import signal, time; signal.signal(15, signal.SIG_IGN); tell('progress', step=1, loss=1.0); time.sleep(600)"
    seen: list[Any] = []

    def read_desired_state() -> DesiredState:
        return DesiredState.CANCEL if any(event["event"] == "progress" for event in seen) else DesiredState.RUN

    with pytest.raises(TrainingStopped, match="by force"):
        run(script_job(text), tmp_path, note=seen.append, desired_state=read_desired_state, grace_s=1, poll_s=0.1)
    (program,) = [event for event in seen if event["event"] == "program"]
    assert not is_running(program["program_pid"])


def test_a_script_that_forks_leaves_nothing_behind(script_job: Callable[..., TrainingJob], tmp_path: Path) -> None:
    text = """
import time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open(f"escaped-{os.getpid()}", "w").close()
            time.sleep(600)
        os._exit(0)
while len(list(Path(".").glob("escaped-*"))) < 2:
    time.sleep(0.05)
tell("warning", text=" ".join(path.name for path in Path(".").glob("escaped-*")))
tell("progress", step=1, loss=1.0)
leave()
"""
    ran = run(script_job(text), tmp_path)
    (warning,) = ran.of("warning")
    escaped = [int(name.partition("-")[2]) for name in warning["text"].split()]
    assert len(escaped) == 2
    assert not any(map(is_running, escaped))


@pytest.mark.slow
def test_a_script_that_prints_a_gigabyte_costs_a_file_that_is_shortened(
    script_job: Callable[..., TrainingJob], tmp_path: Path
) -> None:
    text = """
line = b"x" * 1023 + b"\\n"
os.write(1, b"the first line\\n")
for _ in range(1 << 10):
    os.write(1, line * 1024)
os.write(1, b"the last line\\n")
tell("progress", step=1, loss=1.0); leave()
"""
    before = psutil.Process().memory_info().rss
    ran = run(script_job(text), tmp_path)
    assert psutil.Process().memory_info().rss - before < 100 << 20
    assert ran.record["log_head"].startswith("the first line")
    (log,) = (tmp_path / "home" / "runs" / "training").glob("*/child.log")
    assert log.stat().st_size < 65 << 20
    assert log.read_bytes().endswith(b"the last line\n")


def test_a_long_log_keeps_its_ends(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    with path.open("wb") as stream:
        stream.write(b"first\n")
        stream.truncate(80 << 20)
        stream.seek(0, os.SEEK_END)
        stream.write(b"last\n")
    shorten(path)
    text = path.read_bytes()
    assert (text[:6], text[-5:]) == (b"first\n", b"last\n")
    assert b"16,777,221 bytes of output are left out" in text
    assert len(text) < 65 << 20


def test_an_edited_template_begins_anew(script_job: Callable[..., TrainingJob], tmp_path: Path) -> None:
    job = script_job("Path('checkpoints').mkdir(); sys.exit('not yet')")
    with pytest.raises(TrainyardError, match="not yet"):
        run(job, tmp_path)
    script_job("assert not Path('checkpoints').exists(); tell('progress', step=1, loss=1.0); leave()")
    assert run(job, tmp_path).record["steps"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("port", "config"),
    [
        (Port.SFT, {"method": "full"}),
        (Port.SFT, {"method": "dora"}),
        (Port.SFT, {"method": "lora_plus"}),
        (Port.SFT, {"method": "oft"}),
        (Port.SFT, {"method": {"type": "freeze", "blocks": 1}}),
        (Port.TEXT, {"stage": "cpt"}),
        (Port.PREFERENCE, {}),
        (Port.PREFERENCE, {"method": "full", "preference": {"loss": "ipo"}}),
        (Port.PREFERENCE, {"stage": "reward"}),
    ],
)
def test_the_ejected_script_runs_by_hand(
    port: Port, config: dict[str, Any], jobs: Jobs, tmp_path: Path, home: Path
) -> None:
    """Without any of our packages on its path, and without permission: it is the user's own program now."""
    job = jobs(port, backend="script", hyperparameters={"max_steps": 4}, **config)
    script_folder = tmp_path / "mine"
    files.write(job, script_folder, keep_work=False)
    ran = subprocess.run(
        [sys.executable, "-I", "train.py", "spec.json"], cwd=script_folder, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "trainyard" not in (script_folder / "train.py").read_text().replace("TRAINYARD_EVENTS", "").lower()
    report = json.loads((script_folder / "output" / "report.json").read_text())
    assert report["steps"] == 4
    if port is Port.PREFERENCE and not config:
        assert abs(report["losses"][0][1] - 0.6931) < 1e-3
    with pytest.raises(InvalidInput, match=r"E-FILE-EXISTS: .*A script that you edited is not overwritten"):
        files.write(job, script_folder, keep_work=False)


def test_a_template_that_runs_away_is_found_before_the_script_renders_without_limits(
    tiny_model: Path, jobs: Jobs, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(tiny_model, tmp_path / "base"))
    (base / "chat_template.jinja").write_text("{% if messages | length > 1 %}{{ 'x' * 10**10 }}{% endif %}")
    job = jobs(Port.SFT, backend="script").model_copy(update={"base": str(base)})
    with pytest.raises(TrainyardError, match="E-CHAT-TEMPLATE"):
        files.write(job, tmp_path / "mine", keep_work=False)


@pytest.mark.slow
def test_a_paused_script_continues_and_ends_in_the_same_weights(allowed: Path, jobs: Jobs, tmp_path: Path) -> None:
    job = jobs(backend="script", hyperparameters={"max_steps": 200})
    whole = run(job, tmp_path / "whole")
    seen: list[Any] = []

    def read_desired_state() -> DesiredState:
        return DesiredState.PAUSE if any(event.get("step", 0) >= 3 for event in seen) else DesiredState.RUN

    with pytest.raises(TrainingStopped, match="its checkpoint is kept"):
        run(job, tmp_path / "parts", note=seen.append, desired_state=read_desired_state, poll_s=0.02)
    parts = run(job, tmp_path / "parts")
    assert parts.of("begin")[0]["restarted_from"]["step"] >= 3
    assert [loss for _, loss, _ in parts.record["losses"]] == [loss for _, loss, _ in whole.record["losses"]]
    whole_weights, parts_weights = (
        load_file(training.folder / "adapter_model.safetensors") for training in (whole, parts)
    )
    assert all(bool((whole_weights[name] == parts_weights[name]).all()) for name in whole_weights)
