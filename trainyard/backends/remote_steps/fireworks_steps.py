"""The `fireworks_steps` backend: Fireworks' serverless training sessions, by its SDK in an environment of its own."""

from __future__ import annotations

from trainyard.backends.remote_steps.backend import ChildStepProgram
from trainyard.spec.axes.backends import BackendName

BACKEND = ChildStepProgram(BackendName.FIREWORKS_STEPS)
