"""How far is the memory of a training from what the plan says?

Three steps of full length, each shape with a method; random weights, made on the card. Measured is the peak of what
torch reserved on the card plus the CUDA context, planned is `estimate_memory(...)`, which `trainyard plan` prints. A
case that the plan does not fit onto this card is left out, and the table says so.

    python -m benchmarks.gpu memory
"""

from __future__ import annotations

import gc
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.gpu.engine import assembled, config, train_steps
from benchmarks.gpu.models import full_rows, model_shape, random_weights, write_config
from benchmarks.gpu.platform import PLATFORM, WHY, Platform, result_name
from benchmarks.harness import OK, Row, finish
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.estimate.memory import Memory, estimate_memory
from trainyard.spec.training import TrainerConfig, resolve_trainer

STEPS, TOLERANCE = 3, 0.10
GIB = 2**30


@dataclass(frozen=True)
class MemoryCase:
    """One training whose memory is measured."""

    shape: str
    method: str
    batch: int
    length: int
    checkpointing: bool = False
    optimizer: str = "adamw"

    @property
    def name(self) -> str:
        rest = [f"{self.batch}x{self.length}", *(["checkpointing"] if self.checkpointing else [])]
        rest += [self.optimizer] if self.optimizer != "adamw" else []
        return " ".join((self.shape, self.method, *rest))

    def config(self, platform: Platform) -> dict[str, Any]:
        batch, length = (1, 64) if platform.rehearsal else (self.batch, self.length)
        method: Any = {"type": self.method, "profile": "nightly"} if "lora" in self.method else self.method
        return config(
            platform, "sft", method, engine={"batching": "padded"}, batch_size=batch, max_length=length,
            max_steps=STEPS, gradient_checkpointing=self.checkpointing, optimizer=self.optimizer, learning_rate=1e-5,
        )  # fmt: skip

    def packages(self) -> tuple[str, ...]:
        return ("bitsandbytes",) if self.method == "qlora" or "8bit" in self.optimizer else ()

    def planned(self, platform: Platform) -> Memory:
        """What the plan counts."""
        resolved = resolve_trainer(TrainerConfig.model_validate(self.config(platform)), self.shape)
        return estimate_memory(model_shape(self.shape, platform), resolved, Device(platform.device))


CASES = (
    MemoryCase("qwen3-0.6b", "full", 4, 1024),
    MemoryCase("qwen3-0.6b", "full", 4, 1024, checkpointing=True, optimizer="paged_adamw_8bit"),
    MemoryCase("qwen3-4b", "lora", 2, 1024),
    MemoryCase("qwen3-4b", "lora", 4, 2048, checkpointing=True),
    MemoryCase("qwen3-4b", "qlora", 2, 1024),
    MemoryCase("qwen3-4b", "freeze", 4, 1024),
    MemoryCase("olmo3-7b", "lora", 2, 2048),
    MemoryCase("olmo3-7b", "qlora", 2, 2048, checkpointing=True),
    MemoryCase("llama-70b", "qlora", 1, 2048, checkpointing=True),
)


def card_bytes(platform: Platform) -> int:
    """Memory of the device."""
    return psutil.virtual_memory().total if platform.rehearsal else torch.cuda.mem_get_info()[1]


def fits(case: MemoryCase, platform: Platform) -> bool:
    return case.planned(platform).total < card_bytes(platform)


def missing(case: MemoryCase, platform: Platform) -> list[str]:
    """Packages of a case that are not installed."""
    return [name for name in case.packages() if not platform.has(name)]


def measure(case: MemoryCase, platform: Platform, folder: Path) -> int:
    """Bytes at the peak of three steps; in a rehearsal the resident memory of this process."""
    empty(platform)
    base = write_config(folder / "base", case.shape, platform)
    config = case.config(platform)
    hyper = config["hyperparameters"]
    rows = full_rows(STEPS * hyper["batch_size"], hyper["max_length"])
    with random_weights():
        run = assembled(folder / "run", base, {Port.SFT: rows}, config, platform)
    losses = train_steps(run)
    assert len(losses) == STEPS
    assert sum(run.prepared.widths) == len(rows) * hyper["max_length"], "the rows have full length"
    peak = peak_bytes(platform)
    del run
    empty(platform)
    return peak


def empty(platform: Platform) -> None:
    gc.collect()
    if not platform.rehearsal:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(platform: Platform) -> int:
    """What torch reserved at most, and the context: what is in use on the card and not torch's."""
    if platform.rehearsal:
        return int(psutil.Process().memory_info().rss)
    free, total = torch.cuda.mem_get_info()
    return int(torch.cuda.max_memory_reserved() + (total - free) - torch.cuda.memory_reserved())


def table_row(case: MemoryCase, platform: Platform, folder: Path) -> Row:
    measured, planned = measure(case, platform, folder) / GIB, case.planned(platform)
    print(f"{case.name}: measured {measured:.2f} GiB, planned {planned.total / GIB:.2f}: {planned.in_words()}")
    off = abs(measured / (planned.total / GIB) - 1)
    bar = TOLERANCE if not platform.rehearsal else float("inf")
    return Row(f"GiB, {case.name}", measured, planned.total / GIB, "plan", off, bar, "<=", off <= bar)


def main() -> int:
    if PLATFORM is None:
        print(f"memory: {WHY}")
        return OK
    rows = []
    for case in CASES:
        if missing(case, PLATFORM) or not fits(case, PLATFORM):
            why = (
                f"needs {', '.join(missing(case, PLATFORM))}" if missing(case, PLATFORM) else "is larger than this card"
            )
            print(f"{case.name}: left out, {why}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows.append(table_row(case, PLATFORM, Path(folder)))
    return finish(result_name("gpu_memory", PLATFORM), rows, {})


if __name__ == "__main__":
    sys.exit(main())
