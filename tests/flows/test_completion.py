"""The generator node and the vLLM server that it starts: up for the block, ended after it, refused without a GPU."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import psutil
import pytest

from nodes.completion import completion
from nodes.runner import NodeContext, RunInfo
from trainyard.app.run_records import RunRecord, read_events
from trainyard.compute.child import alive
from trainyard.compute.gpus import Gpu, GpuReadings
from trainyard.errors import Unavailable
from trainyard.serve.client.client import Completer
from trainyard.settings import Settings
from trainyard.spec.graph import ResolvedNode
from trainyard.spec.nodes import AiGeneratorConfig
from trainyard.testing.vllm_program import ENGINE_FILE, vllm_program


def make_context(config: AiGeneratorConfig, folder: Path, settings: Settings) -> NodeContext:
    run = RunInfo("a-run", "chain", "default", str(folder))
    record = RunRecord(folder)
    record.begin({})
    node = ResolvedNode(id="writer", type="ai_generator", config=config)
    return NodeContext(node, {}, run, settings, record, logging.getLogger(__name__))


def read_one_gpu() -> GpuReadings:
    return GpuReadings("ok", "1.0", (Gpu(0, "a GPU", "GPU-0", 16_000, 0, 0, ()),))


async def test_the_engine_vllm_answers_inside_the_block_only(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_program(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    context = make_context(AiGeneratorConfig(model="org/writer", engine="vllm"), tmp_path / "run", Settings(home=home))
    with completion(context, read_one_gpu) as complete:
        assert isinstance(complete, Completer)
        async with complete:
            assert await complete([{"role": "user", "content": "Hello"}], None, 1) == "Reply 0."
    engine = int((tmp_path / "bin" / ENGINE_FILE).read_text())
    assert not psutil.pid_exists(engine) or not alive(psutil.Process(engine))
    assert (tmp_path / "run" / "vllm" / "writer" / "child.log").is_file()
    notes = [event["text"] for event in read_events(tmp_path / "run") if event["event"] == "note"]
    assert notes[0].startswith("starting vLLM with org/writer; its log is in ")
    assert notes[1].startswith("asking org/writer at http://127.0.0.1:")


def test_without_a_gpu_the_engine_vllm_is_refused(home: Path, tmp_path: Path) -> None:
    context = make_context(AiGeneratorConfig(model="org/writer", engine="vllm"), tmp_path / "run", Settings(home=home))
    with pytest.raises(Unavailable, match="R-DEVICE"), completion(context, lambda: GpuReadings("no NVIDIA driver")):
        pytest.fail("nothing answers")
