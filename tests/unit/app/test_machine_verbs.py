"""Operations about one machine: its settings with their sources, training scripts, installations in the background."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.context import Caller, Context
from trainyard.app.gpus import list_gpus
from trainyard.compute.monitor import Clocks, GpuReading, MonitorReading
from trainyard.errors import Conflict, Denied, InvalidInput, NotFound, Refused
from trainyard.settings import Settings, load_settings
from trainyard.surfaces.invocation import build_request, load_implementation

REMOTE = Caller("admin", remote=True)
WAIT_S = 60.0


def run_verb(operation: str, context: Context, **fields: Any) -> Any:
    return load_implementation(operation)(build_request(operation, fields), context)


@pytest.fixture
def context(home: Path) -> Context:
    home.mkdir()
    return Context(load_settings(), say=lambda _: None)


def remote(context: Context, **settings: Any) -> Context:
    return replace(context, caller=REMOTE, settings=load_settings(**settings))


# settings


def test_each_setting_has_its_source(context: Context, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "trainyard.toml").write_text('threads = 3\n[endpoints.guide]\nbase_url = "http://me:pass@host/v1"\n')
    monkeypatch.setenv("TRAINYARD_WORK_POOL", "other")
    report = run_verb("settings", replace(context, settings=load_settings(min_free_mb=7)))
    rows = {setting.name: setting for setting in report.settings}
    assert set(rows) == set(Settings.model_fields)
    assert {name: rows[name].source for name in ("home", "threads", "work_pool", "min_free_mb", "tenant")} == {
        "home": "environment", "threads": "file", "work_pool": "environment", "min_free_mb": "argument",
        "tenant": "default",
    }  # fmt: skip
    assert (rows["threads"].value, rows["threads"].default) == (3, 0)
    assert "pass" not in str(rows["endpoints"].value)
    assert report.file == home / "trainyard.toml"


# scripts


def test_a_script_is_saved_and_shown(context: Context, home: Path) -> None:
    saved = run_verb("scripts save", context, name="mine", text="print('trained')\n")
    assert (home / "script_templates" / "mine.py").read_text() == saved.text == "print('trained')\n"
    listing = run_verb("scripts list", context)
    assert [script.name for script in listing.scripts] == ["built-in", "mine"]
    assert (listing.can_run, listing.can_edit) == (False, True)
    assert run_verb("scripts show", context, name="mine") == saved


def test_a_script_is_not_written_over_another(context: Context) -> None:
    first = run_verb("scripts save", context, name="mine", text="a = 1\n")
    editor = remote(context, api_edit_scripts=True)
    second = run_verb("scripts save", editor, name="mine", text="a = 2\n", if_match=first.etag)
    for etag in ("", first.etag):
        with pytest.raises(Conflict, match="was written meanwhile"):
            run_verb("scripts save", editor, name="mine", text="a = 3\n", if_match=etag)
    assert run_verb("scripts show", editor, name="mine").sha256 == second.sha256
    with pytest.raises(Conflict, match="is not there any more"):
        run_verb("scripts save", editor, name="gone", text="a = 3\n", if_match=first.etag)


def test_a_script_is_code_that_the_operator_allows_to_write(context: Context, home: Path) -> None:
    with pytest.raises(Denied, match="not written over the API"):
        run_verb("scripts save", remote(context, allow_scripts=True), name="mine", text="a = 1\n")
    assert not (home / "script_templates").exists()
    assert not run_verb("scripts list", remote(context)).can_edit
    assert run_verb("scripts list", remote(context, api_edit_scripts=True)).can_edit


@pytest.mark.parametrize("text", ["def :", "a\x00b", "x = (" * 300, "a" * (300 << 10)])
def test_what_is_no_script_is_refused(context: Context, text: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        run_verb("scripts save", context, name="mine", text=text)
    assert raised.value.code == "E-SCRIPT"


def test_the_built_in_script_stays(context: Context) -> None:
    with pytest.raises(Conflict, match="built-in"):
        run_verb("scripts save", context, name="built-in", text="a = 1\n")
    assert "spec.json" in run_verb("scripts show", context, name="built-in").text
    with pytest.raises(NotFound):
        run_verb("scripts show", context, name="other")


def test_a_draft_has_the_script_and_the_spec_of_a_trainer(context: Context, tiny_model: Path) -> None:
    job = {
        "name": "first",
        "base_model": str(tiny_model),
        "dataset": {"path": "rows.jsonl"},
        "method": {"type": "lora", "rank": 4},
    }
    draft = run_verb("scripts draft", context, target="training-job", parameters=job)
    assert (draft.node, draft.script) == ("trainer", "built-in")
    assert draft.spec["lora"]["rank"] == 4
    assert draft.text == run_verb("scripts show", context, name="built-in").text
    with pytest.raises(Refused):
        run_verb("scripts draft", context, target="training-job", parameters={**job, "stage": "grpo"})


# GPUs


def test_a_nearly_full_gpu_is_an_alert(context: Context) -> None:
    gpu = GpuReading(
        index=0, name="card", memory_total_mb=1000, memory_used_mb=950, utilization_gpu=None,
        utilization_memory=None, temperature_c=None, power_draw_w=None, clocks=Clocks(), processes=(),
    )  # fmt: skip
    reading = MonitorReading(state="ok", gpus=(gpu,))
    assert list_gpus(reading, context).alerts == ("GPU 0 (card) uses 950 of 1,000 MiB.",)
    for percent in (96, 0):
        settings = context.settings.model_copy(update={"gpu_memory_alert_percent": percent})
        assert list_gpus(reading, replace(context, settings=settings)).alerts == ()


# installations


@pytest.fixture
def silent_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package index that accepts connections and never answers: an installation that lasts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.getsockname()[1]}/simple")
        monkeypatch.delenv("PIP_NO_INDEX", raising=False)
        ended, connections = threading.Event(), []

        def accept() -> None:
            server.settimeout(0.2)
            while not ended.is_set():
                try:
                    connections.append(server.accept()[0])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        yield
        ended.set()
        thread.join()
        for connection in connections:
            connection.close()


def find_installation(context: Context) -> Any:
    rows = run_verb("backends", context, imports=False).rows
    return next(row.installation for row in rows if row.name.value == "mlx")


def wait_for(context: Context, state: str, text: str) -> Any:
    deadline = time.monotonic() + WAIT_S
    while True:
        installation = find_installation(context)
        if installation.state == state and any(text in line for line in installation.lines):
            return installation
        assert time.monotonic() < deadline, installation
        time.sleep(0.2)


@pytest.mark.usefixtures("silent_index")
@pytest.mark.integration
def test_an_installation_in_the_background_is_seen_and_stopped(context: Context) -> None:
    assert find_installation(context) is None
    table = run_verb("backends install", context, names=["mlx"], background=True)
    assert {row.name.value: row.installable for row in table.rows}["mlx"]
    running = wait_for(context, "running", "installing")
    assert running.seconds is not None
    run_verb("backends install", context, names=["mlx"], background=True)  # finds the one that is running
    assert find_installation(context).started == running.started
    run_verb("backends cancel", context, name="mlx")
    assert find_installation(context) is None
    assert not [*(context.settings.home / "envs").glob(".mlx-*")]
    with pytest.raises(Conflict, match="No installation of mlx"):
        run_verb("backends cancel", context, name="mlx")


@pytest.mark.integration
def test_an_installation_that_fails_says_why(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    run_verb("backends install", context, names=["mlx"], background=True)
    failed = wait_for(context, "failed", "No matching distribution")
    assert failed.seconds is None


def test_what_has_no_environment_is_not_installed_in_the_background(context: Context) -> None:
    named = context.settings.model_copy(update={"backend_envs": {"mlx": Path("mine")}})
    with pytest.raises(Conflict, match="backend_envs"):
        run_verb("backends install", replace(context, settings=named), names=["mlx"], background=True)
