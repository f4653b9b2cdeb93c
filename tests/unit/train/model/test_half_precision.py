"""Which half precision a GPU gets: a card whose bf16 is emulated (V100, T4) computes in fp16 on every backend."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trainyard.app.stack.doctor import look_at_devices
from trainyard.backends.axolotl.config import AxolotlFacts, build_config, choose_precision
from trainyard.backends.job import TrainingJob
from trainyard.backends.trl.loading import pick_device
from trainyard.compute.gpus import Gpu, GpuReadings, read_gpu
from trainyard.errors import InvalidInput, Unavailable
from trainyard.settings import load_settings
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.training import TrainerConfig
from trainyard.train.methods.contract import PolicyRequest
from trainyard.train.methods.loading import base_dtype
from trainyard.train.model import precision
from trainyard.train.model.precision import (
    choose_attention,
    choose_fp8,
    choose_frozen_dtype,
    find_accelerator,
    native_bf16,
)
from trainyard.train.quantization import load_config, require
from trainyard.workers.trainyard_worker.files import WorkerFiles

V100, T4, A100, H100 = (7, 0), (7, 5), (8, 0), (9, 0)
CARDS = [(V100, "fp16"), (T4, "fp16"), (A100, "bf16"), (H100, "bf16")]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@pytest.fixture
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """What torch reads of a card of this capability; its own function decides what follows from that."""
    major, minor = request.param
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(major=major, minor=minor))
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda _: True)  # they all emulate it
    return (major, minor)


@pytest.mark.parametrize(("card", "half"), CARDS, indirect=["card"])
def test_emulated_bf16_counts_for_nothing(card: tuple[int, int], half: str) -> None:
    assert torch.cuda.is_bf16_supported()
    choice = precision.choose_precision(Precision.AUTO, "cuda", native=native_bf16("cuda"))
    assert choice.precision == half
    assert choose_frozen_dtype("cuda", Precision.AUTO) is DTYPES[half]
    assert load_config(Quantization.NF4, "cuda").bnb_4bit_compute_dtype is DTYPES[half]


@pytest.mark.parametrize(("card", "half"), CARDS, indirect=["card"])
def test_frozen_base_is_kept_in_the_half_of_its_card(card: tuple[int, int], half: str) -> None:
    for method, requested, expected in (
        ("lora", "auto", half), ("full", "auto", "fp32"), ("lora", "fp32", "fp32"), ("lora", "fp16", "fp16"),
        ("lora", "bf16", "bf16" if half == "bf16" else "fp32"),
    ):  # fmt: skip
        config = TrainerConfig.model_validate({"method": method, "hyperparameters": {"precision": requested}})
        assert base_dtype(PolicyRequest(config, "base", "causal", "cuda")) is DTYPES[expected], (method, requested)
        assert base_dtype(PolicyRequest(config, "base", "causal", "cpu")) is torch.float32


@pytest.mark.parametrize(("card", "half"), CARDS, indirect=["card"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_programs_of_other_tools_take_the_same(card: tuple[int, int], half: str, device: str, tmp_path: Path) -> None:
    """DeepSpeed's and unsloth's programs, which run in interpreters of their own."""
    (tmp_path / "plan").mkdir()
    for name, value in (
        ("spec.json", {"config": {"hyperparameters": {"precision": "auto"}}}),
        ("plan/plan.json", {"device": device}),
        ("plan/resume.json", {}),
    ):
        (tmp_path / name).write_text(json.dumps(value))
    decision = WorkerFiles(tmp_path).precision(torch.cuda.is_bf16_supported)
    assert decision["precision"] == (half if device == "cuda" else "fp32")
    assert decision["precision_why"]


@pytest.mark.parametrize(("capability", "half"), CARDS)
def test_capability_that_nvml_reads_decides_without_torch(
    capability: tuple[int, int], half: str, tmp_path: Path
) -> None:
    nvml = SimpleNamespace(
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=16 << 30, used=0),
        nvmlDeviceGetName=lambda _: "a card",
        nvmlDeviceGetUUID=lambda _: "GPU-0",
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=0),
        nvmlDeviceGetComputeRunningProcesses=lambda _: [],
        nvmlDeviceGetCudaComputeCapability=lambda _: capability,
        NVMLError_NotSupported=RuntimeError,
    )
    gpu = read_gpu(nvml, 0)
    assert (gpu.capability, gpu.native_bf16) == (capability, half == "bf16")
    assert choose_precision(Precision.AUTO, "cuda", native_bf16=gpu.native_bf16)[0] == half
    assert not Gpu(0, "unknown", "GPU-1", 1, 0, None, ()).native_bf16
    (look,) = look_at_devices(load_settings(home=tmp_path), lambda: GpuReadings("ok", "1.0", (gpu,)))
    assert f"a card 16384 MiB {half}" in look.detail


@pytest.mark.parametrize(
    ("requested", "device", "native", "expected"),
    [
        ("auto", "cuda", True, (True, False)),
        ("auto", "cuda", False, (False, True)),
        ("auto", "cpu", True, (False, False)),
        ("fp16", "cuda", True, (False, True)),
        ("fp32", "cuda", True, (False, False)),
        ("bf16", "cuda", False, (True, False)),
    ],
)
def test_axolotl_is_given_a_precision_and_never_its_auto(
    requested: str, device: str, native: bool, expected: tuple[bool, bool], tmp_path: Path
) -> None:
    config = TrainerConfig.model_validate({"backend": "axolotl", "hyperparameters": {"precision": requested}})
    job = TrainingJob.model_construct(config=config, base="base", adapter=None)
    facts = AxolotlFacts(tmp_path, device, 3, 3, tmp_path, ["q_proj"], native_bf16=native)
    written = build_config(job, facts)
    assert (written["bf16"], written["fp16"]) == expected


# ROCm


@pytest.fixture
def hip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that was built for ROCm and sees a GPU, which it calls `cuda`."""
    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.usefixtures("hip")
def test_torch_of_rocm_is_not_taken_for_cuda() -> None:
    assert find_accelerator("cuda") is Device.ROCM
    assert pick_device(Device.ROCM) == pick_device(Device.AUTO) == "cuda"
    assert native_bf16("cuda") == "cuda"
    with pytest.raises(InvalidInput, match="E-DEVICE: The device 'cuda' was requested, and this machine has none"):
        pick_device(Device.CUDA)
    with pytest.raises(Unavailable, match="hqq"):
        require(Quantization.HQQ_INT4, "cuda")
    require(Quantization.NF4, "cuda")


def test_rocm_is_not_here_without_its_torch() -> None:
    assert find_accelerator("cuda") is Device.CUDA
    with pytest.raises(InvalidInput, match="E-DEVICE: The device 'rocm' was requested"):
        pick_device(Device.ROCM)


def test_the_9_of_a_gfx_architecture_is_not_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision.importlib.util, "find_spec", lambda name: name)  # every package is installed
    mi250, mi300 = (9, 0), (9, 4)
    assert choose_attention("auto", Device.ROCM, capability=mi300).name == "flash_attention_2"
    assert choose_attention("auto", Device.CUDA, capability=H100).name == "flash_attention_3"
    with pytest.raises(Unavailable, match=r"kernel fa3 was requested, .*needs a CUDA device"):
        choose_attention("fa3", Device.ROCM, capability=mi300)
    assert [choose_fp8("auto", Device.ROCM, capability=capability).name for capability in (mi250, mi300)] == [
        "",
        "torchao",
    ]
    assert [choose_fp8("auto", Device.CUDA, capability=capability).name for capability in (A100, (8, 9))] == [
        "",
        "torchao",
    ]
