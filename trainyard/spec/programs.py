"""Configurations that programs give to `TrainingManager` and to a provider, in the names of other training libraries.

Each is turned into the body of a job (`spec/job.JobSpec`), which is checked and run as one from a file.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from trainyard.json_types import JsonObject
from trainyard.spec.axes.axis import Strict


class AdapterMethod(StrEnum):
    """Adapter that a local training makes."""

    LORA = "lora"
    QLORA = "qlora"
    DORA = "dora"


class AlignmentMethod(StrEnum):
    """Objective on pairs of answers."""

    DPO = "dpo"
    ORPO = "orpo"


class LrScheduler(StrEnum):
    """Curve of the learning rate."""

    CONSTANT = "constant"
    COSINE = "cosine"
    LINEAR = "linear"
    ONE_CYCLE = "one_cycle"


class ComputeDevice(str):
    """Device of a training: `ComputeDevice.CPU`, `.WGPU`, `.METAL`, or `ComputeDevice.cuda(0)`."""

    CPU: ComputeDevice
    WGPU: ComputeDevice
    METAL: ComputeDevice

    @classmethod
    def cuda(cls, number: int) -> ComputeDevice:
        """Return a GPU by its number."""
        return cls(f"cuda:{number}")


ComputeDevice.CPU, ComputeDevice.WGPU, ComputeDevice.METAL = map(ComputeDevice, ("cpu", "wgpu", "metal"))


class TrainingHyperparams(Strict):
    """Hyperparameters; None is left to the backend's default."""

    epochs: float | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    lr_scheduler: LrScheduler | None = None
    max_steps: int | None = None


class LoraConfig(Strict):
    """Shape of a low-rank adapter."""

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.05
    target_modules: tuple[str, ...] = ("q_proj", "v_proj")


class LocalTrainingConfig(Strict):
    """A training on this machine."""

    model: str | None = Field(None, description="Base model; default: the machine's.")
    adapter: AdapterMethod = AdapterMethod.LORA
    alignment: AlignmentMethod | None = None
    device: str = "auto"
    lora: LoraConfig = LoraConfig()
    hyperparams: TrainingHyperparams = TrainingHyperparams()
    checkpoint_dir: str | None = None

    def body(self, path: str) -> JsonObject:
        """Return the body of a job on the rows of a file."""
        values: JsonObject = {
            "dataset": {"path": path},
            "method": {"type": self.adapter.value, **self.lora.model_dump(mode="json")},
            "device": str(self.device),
            "hyperparams": self.hyperparams.model_dump(mode="json", exclude_none=True),
        }
        named = {"base_model": self.model, "checkpoint_dir": self.checkpoint_dir}
        named |= {"alignment": self.alignment.value if self.alignment is not None else None}
        return values | {name: value for name, value in named.items() if value is not None}


class CloudFineTuneConfig(Strict):
    """A training at a cloud provider: the same for each of them."""

    model: str = Field(min_length=1, max_length=512, description="The provider's name of the base.")
    training_file: str = Field(min_length=1, description="File of rows on this machine.")
    validation_file: str | None = None
    hyperparams: TrainingHyperparams = TrainingHyperparams()
    suffix: str | None = None
    alignment: AlignmentMethod | None = None

    def body(self, provider: str) -> JsonObject:
        """Return the body of a job at a provider."""
        values: JsonObject = {
            "provider": provider,
            "model": self.model,
            "training_file": self.training_file,
            "hyperparams": self.hyperparams.model_dump(mode="json", exclude_none=True),
        }
        named = {"validation_file": self.validation_file, "suffix": self.suffix}
        named |= {"alignment": self.alignment.value if self.alignment is not None else None}
        return values | {name: value for name, value in named.items() if value is not None}
