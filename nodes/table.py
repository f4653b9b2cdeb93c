"""The node types by name."""

from __future__ import annotations

from typing import Any

from prefect import Task

from nodes.ai_generator import ai_generator
from nodes.data_source import data_source
from nodes.deployer import deployer
from nodes.evaluator import evaluator
from nodes.trainer import trainer
from nodes.validator import validator

NODES: dict[str, Task[..., Any]] = {
    "data_source": data_source,
    "ai_generator": ai_generator,
    "validator": validator,
    "trainer": trainer,
    "evaluator": evaluator,
    "deployer": deployer,
}
"""Node type -> task."""
