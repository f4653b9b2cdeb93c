"""The tables of the axes: each value has its facts, and the facts fit together."""

from __future__ import annotations

import pickle

import pytest
from pydantic import TypeAdapter

from trainyard.spec.axes.axis import AxisValue
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.packages import Package

AXES: tuple[type[AxisValue], ...] = (Optimizer, Quantization)
VALUES = [value for axis in AXES for value in axis]
PACKAGES = [value.facts.package for value in (*Optimizer, *Quantization)]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_its_word_and_has_facts(value: AxisValue) -> None:
    axis = type(value)
    assert value == str(value) == value.value == f"{value}"
    assert axis(str(value)) is value
    assert pickle.loads(pickle.dumps(value)) is value
    assert TypeAdapter(axis).validate_json(f'"{value}"') is value
    assert value.facts is not None


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_what_pip_installs_is_the_package(package: Package) -> None:
    assert package.install.startswith(package.name)


def test_only_a_base_that_exists_in_full_precision_merges() -> None:
    bases = [format for format in Quantization if format.facts.use == "base"]
    assert all(format.facts.mergeable is not format.facts.calibrates for format in bases)
