"""The model server of a phase: real processes from start to the proof that the device is free."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
from pydantic import ValidationError

from trainyard.compute.child import alive
from trainyard.compute.gpus import Gpu, GpuReadings
from trainyard.compute.services import Service, write_record
from trainyard.errors import Conflict, InvalidInput, NotFound, Unavailable
from trainyard.serve.extraction.extraction import SCHEMA, Extraction, Thinking, extract
from trainyard.serve.inference_server.commands import choose_release, command, read_profile, variables
from trainyard.serve.inference_server.life import InferenceServer
from trainyard.serve.inference_server.profiles import (
    EmbeddedEngine,
    LlamaServerEngine,
    Release,
    ServerProfile,
    VllmEngine,
)
from trainyard.settings import Settings
from trainyard.testing.vllm_program import ENGINE_FILE, vllm_program

pytestmark = pytest.mark.integration

DOCUMENT = "Jane Doe of Acme GmbH leads project Blue Harbour."


def gpu(used_mb: int = 0, processes: tuple[int, ...] = ()) -> Callable[[], GpuReadings]:
    return lambda: GpuReadings("ok", "1.0", (Gpu(0, "a GPU", "GPU-0", 24_000, used_mb, 0, processes),))


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings(home=home)


async def test_the_rules_serve_a_phase_from_start_to_free(tmp_path: Path, settings: Settings) -> None:
    with InferenceServer(ServerProfile(), tmp_path, settings) as server:
        server.start()
        server.wait_ready(60)
        server.warm(SCHEMA)
        async with server.completing(4) as complete:
            extraction = await asyncio.gather(*(extract(DOCUMENT, "meetings", complete) for _ in range(8)))
            assert {entity.name for entity in extraction[7].entities} == {"Jane Doe", "Acme GmbH", "Blue Harbour"}
            assert server.drain(10) == 0
            with pytest.raises(Unavailable, match="E-SERVER-STOP"):
                await complete([], None, 10)
        url = server.url
        assert server.stop() is Release.STOP
        server.prove_free(5)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_a_server_of_a_dead_process_is_ended_first(tmp_path: Path, settings: Settings) -> None:
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    server = InferenceServer(ServerProfile(), tmp_path, settings)
    write_record(server.service.record, Service(left.pid, psutil.Process(left.pid).create_time()))
    with pytest.raises(Conflict, match="E-DEVICE-OCCUPIED"):
        server.prove_free(0.1)
    server.service.end_leftover()
    assert left.wait(60) != 0
    server.prove_free(0.1)


def vllm_profile(program: Path, **fields: object) -> ServerProfile:
    return ServerProfile(engine=VllmEngine(type="vllm", model="org/model", program=str(program)), **fields)


def test_nothing_is_started_beside_a_stranger(tmp_path: Path, settings: Settings) -> None:
    program = vllm_program(tmp_path / "bin")
    server = InferenceServer(vllm_profile(program), tmp_path / "run", settings, read=gpu(9_000, (4711,)))
    with pytest.raises(Conflict, match=r"E-DEVICE-OCCUPIED.*process 4711"):
        server.start()
    assert not (tmp_path / "bin" / ENGINE_FILE).exists()


def test_vllm_ends_with_its_engine_and_the_device_is_measured(tmp_path: Path, settings: Settings) -> None:
    used = [500]

    def read() -> GpuReadings:
        return gpu(used[0])()

    program = vllm_program(tmp_path / "bin")
    server = InferenceServer(vllm_profile(program), tmp_path / "run", settings, read=read)
    with server:
        server.start()
        server.wait_ready(60)
        used[0] = 20_000
        server.stop()
    engine = int((tmp_path / "bin" / ENGINE_FILE).read_text())
    assert not psutil.pid_exists(engine) or not alive(psutil.Process(engine))
    with pytest.raises(Conflict, match="E-DEVICE-OCCUPIED"):  # memory that nobody claims is memory in use
        server.prove_free(0.3)
    used[0] = 510
    server.prove_free(1)


def test_a_server_that_dies_says_why(tmp_path: Path, settings: Settings) -> None:
    program = vllm_program(tmp_path / "bin", "die")
    with InferenceServer(vllm_profile(program), tmp_path / "run", settings, read=gpu()) as server:
        server.start()
        with pytest.raises(Unavailable, match=r"E-SERVER-START.*KV cache"):
            server.wait_ready(60)


def test_a_server_that_hangs_is_ended_in_time(tmp_path: Path, settings: Settings) -> None:
    profile = vllm_profile(vllm_program(tmp_path / "bin", "hang"), stop_s=0.5)
    with InferenceServer(profile, tmp_path / "run", settings, read=gpu()) as server:
        server.start()
        with pytest.raises(Unavailable, match="was not ready within 1 s"):
            server.wait_ready(1)
    server.prove_free(1)


def test_the_profile_s_own_time_to_be_ready_counts_from_the_start(tmp_path: Path, settings: Settings) -> None:
    profile = vllm_profile(vllm_program(tmp_path / "bin", "hang"), stop_s=0.5, ready_s=1)
    with InferenceServer(profile, tmp_path / "run", settings, read=gpu()) as server:
        server.start()
        began = time.monotonic()
        with pytest.raises(Unavailable, match="was not ready within"):
            server.wait_ready(600)
        assert time.monotonic() - began < 120


@pytest.mark.parametrize(("profile_s", "asked_s"), [(0.2, 600.0), (600.0, 0.2), (0.2, None)])
def test_requests_under_way_have_the_shorter_time(
    profile_s: float, asked_s: float | None, tmp_path: Path, settings: Settings
) -> None:
    server = InferenceServer(ServerProfile(drain_s=profile_s), tmp_path, settings)
    server.in_flight = 1
    started = time.monotonic()
    left = server.drain(asked_s)
    assert left == 1
    assert 0.2 <= time.monotonic() - started < 60


def test_the_operators_commands_run_without_a_shell(tmp_path: Path, settings: Settings) -> None:
    script = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    boot = (sys.executable, "-c", script, str(tmp_path / "booted"), "$(id); yes")
    stop = (sys.executable, "-c", script, str(tmp_path / "stopped"), "yes")
    with InferenceServer(ServerProfile(boot_command=boot, stop_command=stop), tmp_path / "run", settings) as server:
        server.start()
        assert (tmp_path / "booted").read_text() == "$(id); yes"
    assert (tmp_path / "stopped").exists()
    failing = ServerProfile(boot_command=(sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(Unavailable, match=r"E-SERVER-START.*status 3"):
        InferenceServer(failing, tmp_path / "other", settings).start()


def test_completions_go_to_the_gateway(tmp_path: Path, settings: Settings) -> None:
    profile = ServerProfile(gateway_url="http://127.0.0.1:9080/v1", gateway_model="big", url="http://127.0.0.1:9/v1")
    server = InferenceServer(profile, tmp_path, settings)
    assert (server.chat_url, server.model, server.url) == ("http://127.0.0.1:9080/v1", "big", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="E-SERVER-START"):
        server.wait_ready(0.1)


def test_the_flags_of_vllm(tmp_path: Path, settings: Settings) -> None:
    engine = VllmEngine(
        type="vllm", model="org/model", quantization="awq_marlin", max_model_len=8_192, kv_cache_dtype="fp8",
        max_num_seqs=9, lora_rank=16, program=str(vllm_program(tmp_path)), options=("--seed", "1"),
    )  # fmt: skip
    profile = ServerProfile(engine=engine, release=Release.SLEEP_WITHOUT_WEIGHTS)
    argv = command(profile, 8_000, settings)
    text = " ".join(argv)
    for flag in (
        "--quantization awq_marlin", "--max-model-len 8192", "--kv-cache-dtype fp8", "--max-num-seqs 9",
        "--enable-prefix-caching", "--enable-lora", "--max-lora-rank 16", "--enable-sleep-mode", "--host 127.0.0.1",
    ):  # fmt: skip
        assert flag in text
    assert text.endswith("--seed 1")
    assert variables(profile, argv)["VLLM_SERVER_DEV_MODE"] == "1"


def test_what_is_not_here_is_told(tmp_path: Path, settings: Settings) -> None:
    llama = ServerProfile(engine=LlamaServerEngine(type="llama_server", model="m.gguf", program="no-such-program"))
    with pytest.raises(Unavailable, match="R-PACKAGE-MISSING"):
        command(llama, 1, settings)
    there = ServerProfile(engine=LlamaServerEngine(type="llama_server", model=str(tmp_path / "m.gguf"), program="sh"))
    with pytest.raises(NotFound, match="E-MODEL-NOT-FOUND"):
        command(there, 1, settings)
    (tmp_path / "m.gguf").touch()
    assert "-c 32768 -np 4" in " ".join(command(there, 1, settings))
    with pytest.raises(Unavailable, match="R-PACKAGE-MISSING"):
        command(vllm_profile(tmp_path / "vllm"), 1, settings)


def test_weights_go_to_the_hosts_memory_only_where_it_holds_them() -> None:
    engine = VllmEngine(type="vllm", model="m", weights_mb=18_600)
    profile = ServerProfile(engine=engine, release=Release.AUTO)
    assert choose_release(profile, free_mb=14_000) is Release.STOP
    assert choose_release(profile, free_mb=40_000) is Release.SLEEP_WEIGHTS_IN_RAM
    assert choose_release(ServerProfile(engine=engine), free_mb=40_000) is Release.STOP


def test_profiles_are_files(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("engine: {type: vllm, model: org/model}\nready_s: 100\n")
    assert read_profile(tmp_path / "good.yaml").ready_s == 100
    (tmp_path / "bad.yaml").write_text("engine: {type: vllm}\n")
    with pytest.raises(InvalidInput, match="E-PROFILE"):
        read_profile(tmp_path / "bad.yaml")
    with pytest.raises(NotFound, match=r"E-PROFILE.*bad, good"):
        read_profile(tmp_path / "none.yaml")
    with pytest.raises(ValidationError, match="can only be stopped"):
        ServerProfile(engine=EmbeddedEngine(), release=Release.AUTO)


PROFILES = Path(__file__).parents[3] / "deployments" / "profiles"


async def read_with(profile: ServerProfile, folder: Path, settings: Settings, thinking: Thinking) -> Extraction:
    """One document, read by a server of this profile."""
    server = InferenceServer(profile, folder / "run", settings, read=gpu(), thinking=thinking.on)
    with server:
        server.start()
        server.wait_ready(60)
        server.warm(SCHEMA)
        async with server.completing(1) as complete:
            return await extract(DOCUMENT, "meetings", complete, thinking)


def load_shipped(folder: Path, **changes: object) -> ServerProfile:
    """The profile of the L4, with a program that serves a model which reasons."""
    profile = read_profile(PROFILES / "olmo3-32b-think-l4.yaml")
    program = str(vllm_program(folder / "bin", "think"))
    return profile.model_copy(update={"engine": profile.engine.model_copy(update={"program": program, **changes})})


@pytest.mark.parametrize("thinking", [Thinking(), Thinking(True, 4_000)], ids=["answers", "thinks"])
async def test_the_schema_of_the_l4_profile_is_enforced(thinking: Thinking, tmp_path: Path, settings: Settings) -> None:
    """Without thinking from the first token; with it the model reasons first, and ends within its cap."""
    profile = load_shipped(tmp_path, max_model_len=16_384)
    if thinking.on:  # the double answers in prose where no schema binds it, so the answer does not conform
        with pytest.raises(InvalidInput, match=r"E-EXTRACTION.*not valid JSON: .*line 1 column 1"):
            await read_with(profile, tmp_path, settings, thinking)
    else:
        extraction = await read_with(profile, tmp_path, settings, thinking)
        assert [entity.name for entity in extraction.entities] == ["Ada Byron"]


async def test_a_reasoning_parser_without_a_switch_lets_the_model_reason_past_its_cap(
    tmp_path: Path, settings: Settings
) -> None:
    """Why the profile has no parser: the schema waits for an end of the reasoning that the cap cuts off."""
    profile = load_shipped(tmp_path, chat_template=None, reasoning_parser="olmo3", max_model_len=16_384)
    with pytest.raises(InvalidInput, match="E-EXTRACTION"):
        await read_with(profile, tmp_path, settings, Thinking())


async def test_a_template_that_closes_the_reasoning_binds_with_a_parser_too(tmp_path: Path, settings: Settings) -> None:
    profile = load_shipped(tmp_path, reasoning_parser="olmo3", max_model_len=16_384)
    extraction = await read_with(profile, tmp_path, settings, Thinking())
    assert [entity.name for entity in extraction.entities] == ["Ada Byron"]


def test_a_chat_template_is_found_next_to_its_profile(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("engine: {type: vllm, model: org/model, chat_template: own.jinja}\n")
    with pytest.raises(NotFound, match=r"E-PROFILE: There is no chat template 'own.jinja'"):
        read_profile(path)
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    engine = read_profile(path).engine
    assert isinstance(engine, VllmEngine)
    assert engine.chat_template == str(tmp_path / "own.jinja")
