"""The `deepspeed` backend, seen from the parent: SFT with full weights or LoRA over ZeRO-0 to ZeRO-3.

`launch.strategy` names the sharing: single and ddp are ZeRO-0 (full replicas), zero1 shards the state
of the optimizer, zero2 the gradients too, zero3 the weights as well (arXiv 1910.02054). Really runs on CPUs over gloo.
Imports no torch.
"""

from __future__ import annotations

from trainyard.backends.programs import ExternalProgram
from trainyard.spec.axes.backends import BackendName

BACKEND = ExternalProgram(BackendName.DEEPSPEED)
