"""What the tests of a night start from.

One reading service for all of this folder: most tests parse documents, and a start takes half a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.night.nights import Kept
from tools import night_program
from trainyard.data.corpora import Corpora
from trainyard.data.limited.service import ReadingService, keep_service
from trainyard.night.deps import NightDeps
from trainyard.testing.nights.doubles import parse_in_process


@pytest.fixture(scope="session", autouse=True)
def service() -> Iterator[ReadingService]:
    with keep_service() as running_service:
        yield running_service


@pytest.fixture
def world(tmp_path: Path) -> NightDeps:
    night_program.prepare(tmp_path)
    base_world = night_program.world(tmp_path)
    corpora = Corpora(base_world.stores.corpora.root, parse=parse_in_process)
    return replace(
        base_world, parse=parse_in_process, stores=replace(base_world.stores, graph=Kept().opened, corpora=corpora)
    )
