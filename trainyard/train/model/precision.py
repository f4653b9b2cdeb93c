"""The dtype and the kernels that a run computes with, decided once and recorded with the reason.

On a GPU that has it, bf16. On a CPU bf16 autocast pays only where the processor multiplies bf16 natively, and not for
every model size even there: `CPU_GAINS` has what was measured on a machine that did nothing else. A training never
measures for itself, because a stopwatch next to other work would decide which result it gives.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import InvalidInput, Unavailable
from trainyard.json_types import JsonMapping
from trainyard.loading import load_object
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.packages import LIGER

CPU_BF16 = ("amx_bf16", "avx512_bf16")
"""Instruction sets that multiply bf16; without one, a CPU does it in a scalar loop."""
BELOW_BF16 = frozenset(("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"))
"""Values of oneDNN's `ONEDNN_MAX_CPU_ISA` that switch bf16 instructions off."""
LEAST_GAIN = 1.25
"""bf16 has to be this much faster on the CPU: below it, the rounding buys nothing."""
CPU_GAINS = ((0, 0.6), (64, 0.75), (128, 1.0), (192, 1.1), (256, 1.2), (384, 1.3), (512, 1.5))
"""(least width, speed in bf16 over fp32) of a LoRA step on a CPU with native bf16.

Measured on an AMD EPYC with AVX512-BF16, one thread, torch 2.13: CPU seconds of the fastest of eight steps of a Llama
shape with two blocks, four rows of 64 tokens. Longer rows gain more (at width 256 rows of 256 tokens: 1.5). AMX, which
multiplies bf16 faster, counts as no more than this.
"""
HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model")
"""Names that a `config.json` gives the width of a model."""


@dataclass(frozen=True)
class Availability:
    """Support of a feature on a device, and what to do without it."""

    ok: bool
    why: str = ""
    fix: str = ""


@dataclass(frozen=True)
class PrecisionChoice:
    """bf16, fp16 or fp32, and why."""

    precision: Precision
    why: str


def find_accelerator(device: str) -> Device:
    """Return the row of a device by torch's name for it: torch's builds for ROCm say `cuda` for an AMD GPU."""
    return Device.ROCM if device == "cuda" and load_object("torch").version.hip else Device(device)


def native_bf16(device: str) -> str | None:
    """Return what multiplies bf16 natively on this machine's `cpu`, `cuda` or `mps`: a name, or None for nothing.

    Emulation does not count: torch reports it as support on GPUs before Ampere.
    """
    if device == "cpu":
        return cpu_bf16()
    if device == "cuda" and not load_object("torch").cuda.is_bf16_supported(including_emulation=False):
        return None
    return device


def cpu_bf16(path: Path = Path("/proc/cpuinfo"), environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the instruction set by which this CPU multiplies bf16 (`amx_bf16`, `avx512_bf16`), or None.

    `ONEDNN_MAX_CPU_ISA` and `ATEN_CPU_CAPABILITY` lower what the libraries use, and so what counts as native.
    """
    lowered = environment.get("ONEDNN_MAX_CPU_ISA", "").upper() in BELOW_BF16
    if lowered or environment.get("ATEN_CPU_CAPABILITY", "").lower() in ("default", "avx2") or not path.is_file():
        return None
    flags = next((line for line in path.read_text().splitlines() if line.startswith("flags")), "").split()
    return next((name for name in CPU_BF16 if name in flags), None)


def choose_frozen_dtype(device: str, requested: Precision) -> Any:
    """Return the torch dtype in which weights that stay frozen are kept and multiplied on a device.

    On CUDA that of the precision: with `auto` bf16 where the device multiplies it natively, else fp16 (V100, T4). bf16
    that was asked for on a device without it is computed from float32, as is everything on other devices.
    """
    torch = load_object("torch")
    if device != "cuda" or requested is Precision.FP32:
        return torch.float32
    if requested is Precision.FP16:
        return torch.float16
    if native_bf16(device):
        return torch.bfloat16
    return torch.float16 if requested is Precision.AUTO else torch.float32


def read_hidden_size(config: JsonMapping) -> int | None:
    """Return the width of a model by its `config.json`; None where it does not say it."""
    nested = config.get("text_config")
    parts = (config, nested if isinstance(nested, Mapping) else {})
    sizes = (part.get(key) for part in parts for key in HIDDEN_KEYS)
    return next((size for size in sizes if isinstance(size, int)), None)


def cpu_gain(hidden: int) -> float:
    """Return how many times as fast as in fp32 a CPU with native bf16 trains a model of this width."""
    return next(gain for least, gain in reversed(CPU_GAINS) if hidden >= least)


def choose_precision(
    requested: Precision, device: str, *, native: str | None, hidden: int | None = None
) -> PrecisionChoice:
    """Decide the precision from facts.

    `native` names what the device has for bf16 (an instruction set, `cuda`), None for nothing. `hidden` is the width
    of the model, by which a CPU decides.
    Raises `InvalidInput` (`E-DEVICE`) for fp16 on a CPU, where nothing applies it.
    """
    if requested is Precision.FP16 and device == "cpu":
        raise InvalidInput(
            "precision fp16 was asked for on a CPU.",
            why="Half precision is not applied on CPUs; the run would be fp32 under another name.",
            do="Use precision auto, bf16 or fp32.",
            code="E-DEVICE",
        )
    if requested is not Precision.AUTO:
        return PrecisionChoice(requested, "asked for")
    if native is None and device == "cuda":
        return PrecisionChoice(Precision.FP16, "this device has no native bf16; fp16 with a loss scale instead")
    if native is None:
        return PrecisionChoice(Precision.FP32, f"this {device} has no native bf16")
    return (
        choose_on_cpu(native, hidden)
        if device == "cpu"
        else PrecisionChoice(Precision.BF16, f"native on this device ({native})")
    )


def choose_on_cpu(native: str, hidden: int | None) -> PrecisionChoice:
    """Return bf16 for a CPU with native bf16 where the table says that it pays at this width, else fp32."""
    if hidden is None:
        return PrecisionChoice(Precision.FP32, "the width of the model is not known")
    gain = cpu_gain(hidden)
    if gain >= LEAST_GAIN:
        return PrecisionChoice(Precision.BF16, f"{gain:g} times as fast as fp32 at width {hidden} with {native}")
    return PrecisionChoice(Precision.FP32, f"bf16 is {gain:g} times as fast at width {hidden} with {native}")


# Attention


ATTENTION_NAMES = {"fa3": "flash_attention_3", "fa2": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}
"""Ours -> the name that transformers gives it."""
FLASH_PACKAGES = {"fa3": "flash_attn_interface", "fa2": "flash_attn"}
FLASH_DEVICES = {"fa3": (Device.CUDA,), "fa2": (Device.CUDA, Device.ROCM)}
FLASH_INSTALL = {
    "fa3": "Build flash-attention's `hopper` folder on this machine, or use attention: auto.",
    "fa2": "Run `pip install flash-attn --no-build-isolation` with a CUDA toolkit, or use attention: auto.",
}


@dataclass(frozen=True)
class AttentionSupport:
    """A model's class, and the attention kernels that the library has for it."""

    name: str = "the model"
    kernels: frozenset[str] = frozenset(ATTENTION_NAMES)
    """Our names of the kernels; `eager` is always one of them."""
    attends: bool = True
    """False for a model without attention, such as a state-space model."""

    def reason_against(self, kernel: str) -> str:
        """Return why a kernel cannot compute this model; empty if it can."""
        if not self.attends and kernel != "eager":
            return f"{self.name} has no attention"
        return "" if kernel in self.kernels else f"transformers has no {kernel} attention for {self.name}"


ANY_ARCHITECTURE = AttentionSupport()


@dataclass(frozen=True)
class KernelChoice:
    """A kernel by the name of the library that has it, and why."""

    name: str
    why: str


def choose_attention(
    requested: str,
    device: Device,
    *,
    capability: tuple[int, int] | None = None,
    architecture: AttentionSupport = ANY_ARCHITECTURE,
    flash: bool = True,
) -> KernelChoice:
    """Return the attention kernel: FA3 on Hopper, FA2 on other CUDA devices, where they are installed; else SDPA, else
    eager.

    Without `flash`, one that takes a mask of its caller. `capability` is the GPU's (major, minor): on ROCm that of its
    gfx architecture, whose 9 is not Hopper. Raises `Unavailable` (`E-PACKAGE-MISSING`) for a kernel that was requested
    by name and is not here or not for this architecture: another one would give other numbers under its name.
    """
    if requested == "auto":
        return best_attention(device, capability, architecture, flash)
    fits = device in FLASH_DEVICES.get(requested, (device,))
    if requested in FLASH_PACKAGES and (not fits or importlib.util.find_spec(FLASH_PACKAGES[requested]) is None):
        raise Unavailable(
            f"The attention kernel {requested} was requested, and this machine does not have it.",
            why=f"{FLASH_PACKAGES[requested]} is not installed." if fits else "It needs a CUDA device.",
            do=FLASH_INSTALL[requested],
            code="E-PACKAGE-MISSING",
        )
    if against := architecture.reason_against(requested):
        raise Unavailable(
            f"The attention kernel {requested} was requested, and this model cannot be computed with it.",
            why=f"{against}.",
            do="Use attention: auto, which takes and records a kernel that the model has.",
            code="E-PACKAGE-MISSING",
        )
    return KernelChoice(ATTENTION_NAMES[requested], "asked for")


def best_attention(
    device: Device, capability: tuple[int, int] | None, architecture: AttentionSupport, flash: bool
) -> KernelChoice:
    hopper = capability is not None and capability[0] == 9
    fitting = [name for name in FLASH_PACKAGES if device in FLASH_DEVICES[name] and (hopper or name != "fa3")]
    kernels = fitting if flash else []
    for name in kernels:
        if importlib.util.find_spec(FLASH_PACKAGES[name]) is not None and not architecture.reason_against(name):
            return KernelChoice(ATTENTION_NAMES[name], f"{FLASH_PACKAGES[name]} is installed")
    if against := architecture.reason_against("sdpa"):
        return KernelChoice("eager", against)
    if not flash:
        return KernelChoice("sdpa", "it takes a mask of its caller")
    return KernelChoice("sdpa", "no flash-attention is installed" if kernels else f"the best that this {device} has")


# fp8


FP8_MULTIPLE = 16
"""fp8 matrix products need sizes that are multiples of it."""


def choose_fp8(requested: str, device: Device, *, capability: tuple[int, int] | None = None) -> KernelChoice | None:
    """torchao's float8 training where device and package allow it; None for none, with the reason recorded by `why`.

    Raises `Unavailable` (`E-PACKAGE-MISSING`) when `torchao` was requested by name and is not possible here, and
    `InvalidInput` (`E-PACKAGE-MISSING`) for ms-amp, which needs a torch and an NCCL of years ago.
    """
    if requested == "off":
        return None
    if requested == "ms-amp":
        raise InvalidInput(
            "MS-AMP is no longer maintained.",
            why="It needs a patched NCCL and a torch of years ago.",
            do="Use fp8: auto or torchao.",
            code="E-PACKAGE-MISSING",
        )
    missing = fp8_missing(device, capability)
    if missing and requested == "torchao":
        raise Unavailable(
            "fp8 training was requested, and this machine cannot do it.",
            why=missing,
            do="Use fp8: auto, which falls back to bf16 and says so.",
            code="E-PACKAGE-MISSING",
        )
    return KernelChoice("", f"fp8 is off: {missing}") if missing else KernelChoice("torchao", "float8 on this device")


def fp8_missing(device: Device, capability: tuple[int, int] | None) -> str:
    """Return why fp8 cannot be used; empty if it can."""
    first = device.facts.fp8_capability
    if first is None:
        return f"a {device} does not multiply fp8"
    if capability is None or capability < first:
        return f"the device's capability {capability} is below {first}"
    if importlib.util.find_spec("torchao") is None:
        return "torchao is not installed (`pip install torchao==0.18.0`)"
    return ""


def fits_fp8(module: Any, name: str) -> bool:
    """Return whether a linear layer can be fp8: its sizes are multiples of 16, and it is not the output layer."""
    sizes = (getattr(module, "in_features", 1), getattr(module, "out_features", 1))
    return all(size % FP8_MULTIPLE == 0 for size in sizes) and "lm_head" not in name and "lora" not in name


def convert_to_fp8(model: Any, *, emulate: bool = False) -> Any:
    """Swap the linear layers for torchao's float8 ones, in place; `emulate` computes them in higher precision (tests).

    Source: torchao.float8 (`convert_to_float8_training`, tensorwise scaling).
    """
    float8 = load_object("torchao.float8")
    # A batch may have any number of positions, which is the inner size of the products for the weights' gradients.
    config = float8.Float8LinearConfig(emulate=emulate, pad_inner_dim=True)
    return float8.convert_to_float8_training(model, config=config, module_filter_fn=fits_fp8)


# Liger: fused RMSNorm, RoPE and SwiGLU in the blocks of a model (arXiv 2410.10989). liger_kernel compiles Triton
# kernels, decides on its device when it is imported, and replaces classes of the family in transformers for the rest of
# the process. So it is imported here and for `Head.LIGER` alone, in the child that trains, and only on a GPU.


FUSED = ("rms_norm", "rope", "swiglu")
LOSSES = ("cross_entropy", "fused_linear_cross_entropy")
"""Left to the head: the engine computes only the labelled positions."""


def require_liger(device: str) -> None:
    """Raise `Unavailable` (`E-PACKAGE-MISSING`) when Liger's kernels were requested and are not possible here."""
    if device != "cuda" or importlib.util.find_spec(LIGER.name) is None:
        raise Unavailable(
            "Liger's kernels were requested, and this machine cannot run them.",
            why=f"They need a CUDA device, not a {device}." if device != "cuda" else "liger-kernel is not installed.",
            do=f"Run `pip install '{LIGER.install}'`." if device == "cuda" else "Use head: auto and kernels: torch.",
            code="E-PACKAGE-MISSING",
        )


def fuse_blocks(model: Any, device: str) -> tuple[str, ...]:
    """Let a model's blocks compute by Liger's kernels; returns which of `FUSED` its family has.

    Raises `Unavailable` (`E-PACKAGE-MISSING`) as `require_liger`, and for a family that Liger does not know.
    """
    require_liger(device)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    families = load_object("liger_kernel.transformers.monkey_patch:MODEL_TYPE_TO_APPLY_LIGER_FN")
    if base.config.model_type not in families:
        raise Unavailable(
            f"Liger has no kernels for a model of type {base.config.model_type}.",
            why="It would leave the model as it is, without a message.",
            do="Use kernels: torch.",
            code="E-PACKAGE-MISSING",
        )
    parameters = inspect.signature(families[base.config.model_type]).parameters
    fused = tuple(name for name in FUSED if name in parameters)
    options = dict.fromkeys(fused, True) | dict.fromkeys(LOSSES, False)
    load_object("transformers.integrations.liger:apply_liger_kernel")(base, options)
    return fused


# torch.compile


def compile_blocks(model: Any, device: str) -> int:
    """Compile every block of a model by torch.compile, in place; returns how many there are.

    The blocks share one program, so that a deep model compiles as fast as a shallow one, and the names of the weights
    stay (https://docs.pytorch.org/tutorials/recipes/regional_compilation.html). Lengths are dynamic from the first
    batch on: otherwise each length that is new would be compiled again. Raises `Unavailable` (`E-PACKAGE-MISSING`).
    """
    block = load_object("transformers.modeling_layers:GradientCheckpointingLayer")
    blocks = [module for module in model.modules() if isinstance(module, block)]
    if device != "cuda" or not blocks:
        raise Unavailable(
            "engine.compile was requested, and nothing is compiled here.",
            why="The model has no blocks of transformers." if device == "cuda" else f"On a {device} it does not pay.",
            do="Remove engine.compile.",
            code="E-PACKAGE-MISSING",
        )
    for each in blocks:
        each.compile(dynamic=True)
    return len(blocks)
