"""Each value of an axis that the native engine supports has its functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.stages import PreferenceLoss
from trainyard.spec.rates import SCHEDULES
from trainyard.train.losses.dpo import LOSSES
from trainyard.train.losses.table import STAGES
from trainyard.train.methods.table import METHODS
from trainyard.train.optimizers import OPTIMIZERS

NATIVE = BackendName.NATIVE.facts


@pytest.mark.parametrize(
    ("table", "values"),
    [
        (STAGES, NATIVE.stages), (METHODS, NATIVE.methods), (OPTIMIZERS, NATIVE.optimizers),
        (SCHEDULES, NATIVE.schedules), (LOSSES, PreferenceLoss),
    ],
)  # fmt: skip
def test_every_supported_value_has_its_functions(table: dict[Any, Any], values: Iterable[Any]) -> None:
    assert list(table) == list(values)


def test_a_method_with_an_adapter_says_how_it_is_shaped() -> None:
    assert all((row.adapter_config is not None) is method.facts.adapter for method, row in METHODS.items())


def test_a_stage_has_its_own_facts() -> None:
    assert all(spec.facts is stage.facts for stage, spec in STAGES.items())
