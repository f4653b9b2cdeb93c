"""The `remote` backend: another Trainyard, by its Tinker wire."""

from __future__ import annotations

from trainyard.backends.remote_steps.backend import StepProgram
from trainyard.spec.axes.backends import BackendName

BACKEND = StepProgram(BackendName.REMOTE)
