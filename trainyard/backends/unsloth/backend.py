"""The `unsloth` backend, seen from the parent: LoRA and QLoRA SFT by FastLanguageModel and TRL. Imports no torch.

Its kernels are for CUDA, where it is meant to be used; on a CPU it trains LoRA through the same calls without them.
"""

from __future__ import annotations

from trainyard.backends.programs import ExternalProgram
from trainyard.spec.axes.backends import BackendName

BACKEND = ExternalProgram(BackendName.UNSLOTH)
