"""The `axolotl` backend, seen from the parent: a YAML written from the job, and `axolotl train`. Imports no torch.

Axolotl is made for CUDA and ROCm. Tried on a CPU (axolotl 0.19.0, torch 2.13.0): it installs, validates and trains with
its LoRA kernels off, which ask for CUDA; so `device: cpu` is allowed, for trials and small models. 4-bit bases are not.

Rows are drawn in axolotl's own order. SFT rows come tokenised and labelled, so that its account is ours; preference
rows come as rendered text and are tokenised there.
"""

from __future__ import annotations

from trainyard.backends.programs import ExternalProgram
from trainyard.spec.axes.backends import BackendName

BACKEND = ExternalProgram(BackendName.AXOLOTL)
