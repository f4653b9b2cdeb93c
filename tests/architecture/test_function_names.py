"""A function is named verb_object, or fills a slot of a table: the share of names that say nothing."""

from __future__ import annotations

import pytest

from tests.architecture.name_shares import ROOMS, measure_share
from tools.function_names import SLOTS, functions, says_nothing

BARS = {"trainyard": 0.05, "flows": 0.03, "nodes": 0.03, "tasks": 0.0, "tests": 0.05}
ROOMS_BAR = 0.08
ROOMS_ABOVE = {"evals": 0.12}


@pytest.mark.parametrize("root", BARS)
def test_few_functions_say_nothing(root: str) -> None:
    assert measure_share(functions(root)) <= BARS[root], f"python -m tools.function_names {root}"


@pytest.mark.parametrize("room", ROOMS)
def test_few_functions_of_a_room_say_nothing(room: str) -> None:
    assert measure_share(functions(f"trainyard/{room}")) <= ROOMS_ABOVE.get(room, ROOMS_BAR), (
        f"tools.function_names trainyard/{room}"
    )


@pytest.mark.parametrize("name", ["merged", "asked_by_name", "rows_of", "in_order", "own_role", "carry_out", "load"])
def test_an_empty_name_is_found(name: str) -> None:
    assert says_nothing(name)


@pytest.mark.parametrize("name", ["find_file", "parse_chain", "is_stale", "feed_rows", "loss", "to_json", "load_chain"])
def test_a_name_with_a_verb_is_not(name: str) -> None:
    assert not says_nothing(name)


@pytest.mark.parametrize("slot", SLOTS)
def test_each_table_with_slots_is_there(slot: str) -> None:
    assert any(
        says_nothing(function.name.strip("_")) for function in functions("trainyard") if function.file.startswith(slot)
    )
