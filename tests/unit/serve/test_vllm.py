"""A vLLM server of our own, played by a stand-in program: real processes, a real port, and nothing left of either."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from trainyard.compute.child import LOG_FILE, alive
from trainyard.compute.gpus import Gpu, GpuReadings
from trainyard.compute.services import confirm_closed
from trainyard.data.generation.generate import generate
from trainyard.data.rows import DocumentRow, write_rows
from trainyard.errors import Unavailable
from trainyard.serve.client.client import Completer
from trainyard.serve.inference_server.life import InferenceServer
from trainyard.serve.inference_server.vllm import build_profile, executable, install_line, program, require_gpu
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import AiGeneratorConfig
from trainyard.testing.vllm_program import ENGINE_FILE, vllm_program

Install = Callable[..., Path]


def read_one_gpu() -> GpuReadings:
    return GpuReadings("ok", "1.0", (Gpu(0, "a GPU", "GPU-0", 16_000, 0, 0, ()),))


def read_no_gpu() -> GpuReadings:
    return GpuReadings("no NVIDIA driver")


@contextmanager
def serving(folder: Path, settings: Settings, **changes: float) -> Iterator[str]:
    """A server as the generator node starts it; yields the address for completions."""
    profile = build_profile("org/model", "writer", settings).model_copy(update=changes)
    with InferenceServer(profile, folder, settings, read=read_one_gpu) as server:
        server.start()
        server.wait_ready()
        yield server.chat_url


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings(home=home, vllm_options=("--max-model-len", "4096"))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a stand-in on the PATH; returns the folder that it and its `engine.pid` are in."""

    def install(play: str = "serve") -> Path:
        folder = tmp_path / "bin"
        vllm_program(folder, play)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return folder

    return install


def assert_nothing_is_left(folder: Path) -> None:
    """Neither the program nor the engine that detached itself."""
    engine = int((folder / ENGINE_FILE).read_text())
    assert not psutil.pid_exists(engine) or not alive(psutil.Process(engine))
    run_folder = str(folder.parent)  # other tests of this process may keep a server of theirs
    assert not [
        process
        for process in psutil.Process().children(recursive=True)
        if alive(process) and run_folder in str(process.cmdline())
    ]


def test_it_serves_inside_the_block_and_is_gone_after_it(
    settings: Settings, installed: Install, tmp_path: Path
) -> None:
    folder = installed()
    with serving(tmp_path / "run", settings) as url:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", url)
        port = int(url.split(":")[2].removesuffix("/v1"))
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            assert psutil.pid_exists(int((folder / ENGINE_FILE).read_text()))
    assert_nothing_is_left(folder)
    confirm_closed(port)
    log = (tmp_path / "run" / LOG_FILE).read_text()
    assert "Starting vLLM with org/model, max_model_len 4096" in log
    assert f"Serving at {url}" in log


def test_the_server_knows_the_model_by_the_name_that_was_given(
    settings: Settings, installed: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed()
    monkeypatch.setenv("VLLM_API_KEY", "meant for another server")
    with serving(tmp_path / "run", settings) as url:
        cards = httpx.get(f"{url}/models", trust_env=False).json()["data"]
        assert [card["id"] for card in cards] == ["writer"]


def test_rows_are_generated_through_it(settings: Settings, installed: Install, tmp_path: Path) -> None:
    folder = installed()
    pages = [DocumentRow(f"d{n}", f"docs/{n}.md", "markdown", f"Page {n}", f"Page {n} tells a lot.") for n in range(3)]
    write_rows(tmp_path / "documents" / "rows.arrow", Port.DOCUMENTS, pages)
    config = AiGeneratorConfig(model="writer", engine="vllm", count=12, wordings=2)
    with serving(tmp_path / "run", settings) as url:
        produced = generate(
            config,
            tmp_path / "documents",
            tmp_path / "out",
            complete=Completer(config, url, "writer"),
            report=lambda fraction, text: None,
        )
    assert produced.facts["asked"] == produced.facts["kept"] == 12
    assert_nothing_is_left(folder)


def test_an_error_in_the_block_ends_it_too(settings: Settings, installed: Install, tmp_path: Path) -> None:
    folder = installed()
    with pytest.raises(ValueError, match="inside"), serving(tmp_path / "run", settings):
        raise ValueError("inside")
    assert_nothing_is_left(folder)


def test_a_death_before_it_is_ready_tells_the_last_line_of_the_log(
    settings: Settings, installed: Install, tmp_path: Path
) -> None:
    folder = installed("die")
    with (
        pytest.raises(
            Unavailable, match=r"E-SERVER-START: .* ended before it was ready\. Why: ValueError: .* KV cache\."
        ),
        serving(tmp_path / "run", settings),
    ):
        pytest.fail("it is not ready")
    assert_nothing_is_left(folder)


def test_arguments_that_vllm_refuses_are_told(home: Path, installed: Install, tmp_path: Path) -> None:
    installed()
    wrong = Settings(home=home, vllm_options=("--max-modell-length", "1"))
    with (
        pytest.raises(Unavailable, match=r"Why: vllm: error: unrecognized arguments.* vllm_options of trainyard\.toml"),
        serving(tmp_path / "run", wrong),
    ):
        pytest.fail("it is not ready")


@pytest.mark.slow
def test_a_server_that_hangs_has_a_budget_and_is_killed(settings: Settings, installed: Install, tmp_path: Path) -> None:
    folder = installed("hang")
    start_s = time.monotonic()
    with (
        pytest.raises(Unavailable, match=r"was not ready within 5 s\. Why: INFO Loading weights"),
        serving(tmp_path / "run", settings, ready_s=5, stop_s=0.5),
    ):
        pytest.fail("it is not ready")
    assert time.monotonic() - start_s < 20
    assert_nothing_is_left(folder)


def test_without_a_cuda_device_the_engine_is_refused() -> None:
    message = r"R-DEVICE: .*NVML says: no NVIDIA driver\. Do: Use engine openai .*local"
    with pytest.raises(Unavailable, match=message):
        require_gpu(read_no_gpu)


def test_without_the_program_the_line_that_installs_it_is_told(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    line = "trainyard backends install vllm"
    assert install_line() == line
    with pytest.raises(Unavailable, match=rf"R-PACKAGE-MISSING: .*`{re.escape(line)}`") as caught:
        program(settings)
    assert caught.value.exit_code == 7


def test_the_environment_of_its_own_goes_before_the_path(settings: Settings, installed: Install) -> None:
    folder = installed()
    assert executable(settings) == folder / "vllm"
    own_program = vllm_program(settings.home / "envs" / "vllm" / "bin")
    assert program(settings) == own_program
