"""What the tests of a night start from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.night.nights import Kept
from tools import night_program
from trainyard.data.corpora import Corpora
from trainyard.night.deps import NightDeps
from trainyard.testing.nights.doubles import parse_in_process


@pytest.fixture
def world(tmp_path: Path) -> NightDeps:
    night_program.prepare(tmp_path)
    base_world = night_program.world(tmp_path)
    corpora = Corpora(base_world.stores.corpora.root, parse=parse_in_process)
    return replace(
        base_world, parse=parse_in_process, stores=replace(base_world.stores, graph=Kept().opened, corpora=corpora)
    )
