"""The plan's memory against a card, up to 70 billion weights in nf4."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.memory import CASES, GIB, TOLERANCE, MemoryCase, card_bytes, fits, measure
from benchmarks.gpu.place import Place

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_memory_of_a_training_is_what_the_plan_says(
    case: MemoryCase, target: Place, needs: Callable[[str], Any], tmp_path: Path
) -> None:
    for package in case.packages():
        needs(package)
    planned = case.planned(target)
    if not fits(case, target):
        pytest.skip(f"planned {planned.total / GIB:.1f} GiB, {target.name()} has {card_bytes(target) / GIB:.1f}")
    measured = measure(case, target, tmp_path)
    assert measured > 0
    if not target.rehearsal:
        assert measured == pytest.approx(planned.total, rel=TOLERANCE), planned.in_words()
