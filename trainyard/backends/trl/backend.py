"""The `trl` backend, seen from the parent: what it can do, and the command that does it. Imports no torch."""

from __future__ import annotations

from trainyard.backends.programs import OwnProgram
from trainyard.spec.axes.backends import BackendName

PACKAGES = ("torch", "transformers", "peft", "trl", "accelerate", "datasets")
BACKEND = OwnProgram(BackendName.TRL, "trl", PACKAGES)
