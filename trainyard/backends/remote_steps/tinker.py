"""The `tinker` backend: the Tinker service, or what TINKER_BASE_URL points at."""

from __future__ import annotations

from trainyard.backends.remote_steps.backend import StepProgram
from trainyard.spec.axes.backends import BackendName

BACKEND = StepProgram(BackendName.TINKER)
