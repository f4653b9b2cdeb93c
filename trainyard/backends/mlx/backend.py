"""The `mlx` backend, seen from the parent: SFT and continued pretraining with LoRA, DoRA or full weights by mlx-lm.

mlx is Apple's framework: Metal on their machines, and really computing on Linux CPUs. Imports neither mlx nor torch.
"""

from __future__ import annotations

from trainyard.backends.programs import ExternalProgram
from trainyard.spec.axes.backends import BackendName

BACKEND = ExternalProgram(BackendName.MLX)
