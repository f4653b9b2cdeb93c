from __future__ import annotations

from typing import Any

import pytest

from trainyard.errors import InvalidInput
from trainyard.sweeps.spec import SweepSpec, corners, is_range, parse_range, rung_steps


@pytest.mark.parametrize(
    ("text", "values", "ends"),
    [
        ("choice(8, 16, 32)", (8, 16, 32), (8, 16, 32)),
        ("choice(adamw, lion)", ("adamw", "lion"), ("adamw", "lion")),
        ('choice(true, null, "a b")', (True, None, "a b"), (True, None, "a b")),
        ("int(1, 4)", (1, 2, 3, 4), (1, 4)),
        ("int(8, 64, 16)", (8, 24, 40, 56), (8, 56)),
        ("uniform(0, 0.3, 0.1)", (0.0, 0.1, 0.2, 0.3), (0.0, 0.3)),
        ("uniform(0, 0.2)", None, (0.0, 0.2)),
        ("loguniform(1e-5,1e-3)", None, (1e-5, 1e-3)),
        ("logint(1, 64)", None, (1, 64)),
    ],
)
def test_a_range_has_values_and_ends(text: str, values: tuple[Any, ...] | None, ends: tuple[Any, ...]) -> None:
    parsed = parse_range("trainer.x", text)
    assert is_range(text)
    assert parsed.values == (values if values is None else pytest.approx(values) if "uniform" in text else values)
    assert parsed.corners == (pytest.approx(ends) if "uniform" in text else ends)


@pytest.mark.parametrize(
    "text",
    [
        "uniform(2, 1)", "uniform(1, 1)", "loguniform(0, 1)", "int(0.5, 3)", "int(1, 3, 4)", "choice()",
        "choice(8, 8)", "uniform(1)", "uniform(1, 2, 3, 4)", "loguniform(1, 10, 2)", "normal(0, 1)", "int(a, b)",
        "uniform(true, 2)", "uniform(0, NaN)",
    ],
)  # fmt: skip
def test_what_is_not_a_range_is_refused_with_its_path(text: str) -> None:
    assert is_range(text)
    with pytest.raises(InvalidInput, match=r"E-PARAMETER: trainer\.x: .* is not a range\..*Write uniform\(LOW, HIGH"):
        parse_range("trainer.x", text)


@pytest.mark.parametrize("value", [3, 0.5, "adamw", True, None, [1, 2], "a (b)"])
def test_any_other_value_is_the_same_in_every_trial(value: object) -> None:
    assert not is_range(value)


def test_corners_are_all_combinations_of_choices_and_ends() -> None:
    ranges = {"a": parse_range("a", "choice(1, 2)"), "b": parse_range("b", "loguniform(1, 10)")}
    assert [tuple(corner.values()) for corner in corners(ranges, 10)] == [(1, 1.0), (1, 10.0), (2, 1.0), (2, 10.0)]
    assert len(list(corners(ranges, 3))) == 3


@pytest.mark.parametrize(
    ("steps", "reduction", "first", "expected"),
    [
        (27, 3, None, (3, 9)),
        (100, 3, None, (12, 36)),
        (100, 2, 10, (10, 20, 40, 80)),
        (5, 3, None, (1, 3)),
        (1, 3, None, ()),
        (8, 4, 8, ()),
    ],
)
def test_rungs_are_below_the_end(steps: int, reduction: int, first: int | None, expected: tuple[int, ...]) -> None:
    assert rung_steps(steps, reduction, first) == expected


def test_a_grid_of_a_continuous_range_is_refused() -> None:
    nodes = [{"type": "data_source", "config": {"path": "d.jsonl"}}, {"type": "trainer"}]
    spec_fields = {"name": "s", "chain": {"nodes": nodes}, "trainer": "trainer", "sampler": "grid"}
    with pytest.raises(ValueError, match=r"a grid needs finite ranges: give trainer\.a a step"):
        SweepSpec.model_validate({**spec_fields, "parameters": {"trainer.a": parse_range("a", "uniform(0, 1)")}})
