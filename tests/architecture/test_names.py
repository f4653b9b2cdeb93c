"""A name says what the thing is: the share of bindings that are pronouns, participles or fillers."""

from __future__ import annotations

import pytest

from tests.architecture.name_shares import ROOMS, measure_share
from tools.binding_names import ALLOWED, ROOT, STORED_FIELDS, bindings, names_in_file

BAR = 0.01
ROOTS = ("trainyard", "flows", "nodes", "tasks", "tests")
ROOMS_BAR = 0.005


@pytest.mark.parametrize("root", ROOTS)
def test_few_names_say_nothing(root: str) -> None:
    assert measure_share(bindings(root)) <= BAR, f"python -m tools.binding_names {root}"


@pytest.mark.parametrize("room", ROOMS)
def test_few_names_of_a_room_say_nothing(room: str) -> None:
    assert measure_share(bindings(f"trainyard/{room}")) <= ROOMS_BAR, f"python -m tools.binding_names trainyard/{room}"


def test_each_allowance_is_needed() -> None:
    unused = [entry for entry in STORED_FIELDS if entry[1] not in names_in_file(entry[0])]
    unused += [(folder, name) for name, folders in ALLOWED.items() for folder in folders if not is_used(folder, name)]
    assert not unused, "remove what nothing uses from ALLOWED or STORED_FIELDS of tools/binding_names.py"


def is_used(folder: str, name: str) -> bool:
    files = (path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py"))
    return any(name in names_in_file(file) for file in files)
