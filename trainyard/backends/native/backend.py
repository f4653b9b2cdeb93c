"""The `native` backend, seen from the parent: the engine in `trainyard/train`. Imports no torch."""

from __future__ import annotations

from trainyard.backends.programs import OwnProgram
from trainyard.spec.axes.backends import BackendName

SHARED_PROGRAM = "trainyard.backends.native.ranks:train"


"""Of a distributed training: rank 0 runs the program; the other ranks follow it."""
PACKAGES = ("torch", "transformers", "peft", "safetensors")
BACKEND = OwnProgram(
    BackendName.NATIVE, "trainyard", PACKAGES, SHARED_PROGRAM, islands="trainyard.backends.native.islands:train"
)
