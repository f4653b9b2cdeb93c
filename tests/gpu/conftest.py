"""Fixtures of the GPU tests. Imports only what a bare CUDA machine has: no Prefect, no installed Trainyard.

The device is `benchmarks.gpu.platform.PLATFORM`: the card, or a CPU for a rehearsal; without either every test is
skipped.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import platform as platforms
from benchmarks.gpu.engine import assembled
from benchmarks.gpu.models import rows_of_ports, write_base
from benchmarks.gpu.platform import Platform
from trainyard import settings as settings_module
from trainyard.backends.native.assembly import NativeRun
from trainyard.data.rows import Row
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.stages import Stage

ROWS, LENGTH = 8, 48
Build = Callable[..., NativeRun]
Needs = Callable[[str], Any]
BUILT = ("flash_attn", "flash_attn_interface")
"""Packages that are built on a machine with CUDA's compiler; the others are wheels."""


@pytest.fixture(scope="session")
def platform() -> Platform:
    """The device, or a skip that says what is missing."""
    if platforms.PLATFORM is None:
        pytest.skip(platforms.WHY)
    return platforms.PLATFORM


@pytest.fixture
def card(platform: Platform) -> Platform:
    """The device of a test that has nothing to rehearse on a CPU."""
    if platform.rehearsal:
        pytest.skip("has no counterpart on a CPU")
    return platform


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own for every test."""
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    settings_module.settings.cache_clear()
    yield tmp_path / "home"
    settings_module.settings.cache_clear()


@pytest.fixture(autouse=True)
def freed_memory() -> Iterator[None]:
    """The next test finds the card empty."""
    yield
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@pytest.fixture(scope="session")
def base(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama that a CPU trains as well."""
    return write_base(tmp_path_factory.mktemp("bases") / "small", "small", platform)


@pytest.fixture
def build(platform: Platform, base: Path, tmp_path: Path) -> Build:
    """`build(config)`: the engine at its first step over rows of the config's stage, in a folder of its own.

    `name` of a folder that was built before builds the same job there again; `device` takes another device.
    """

    def assemble_run(
        config: dict[str, Any], *, rows: Sequence[Row] | None = None, name: str = "", device: str = ""
    ) -> NativeRun:
        folder = tmp_path / (name or f"run-{len(list(tmp_path.iterdir()))}")
        at = Platform(device) if device else platform
        port = find_port(config["stage"])
        port_rows = rows_of_ports(ROWS, LENGTH)[port] if rows is None else rows
        return assembled(folder, base, {port: port_rows}, {**config, "device": at.device}, at)

    return assemble_run


def find_port(stage: str | dict[str, Any]) -> Port:
    return Stage(stage if isinstance(stage, str) else stage["type"]).facts.ports[0]


@pytest.fixture
def needs() -> Needs:
    """`needs("trl")`: the package, or a skip that says how it comes to a bare machine."""

    def find(name: str) -> Any:
        how = "it is built with CUDA's compiler" if name in BUILT else "take the wheels of `make gpu-wheels` along"
        return pytest.importorskip(name, reason=f"{name} is not installed: {how}")

    return find
