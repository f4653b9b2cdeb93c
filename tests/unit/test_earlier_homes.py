"""A home that an earlier version wrote is read by this one.

`tests/resources/homes/4b25bfd.tar.gz` was written below `/srv/trainyard` by the commit of that name: a training paused
at step 4 of 12 with the digest of the adapter that the same training left when it was not paused, a deployed adapter,
and one night (`trainyard.testing.night_program`) with its state.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.conftest import REPOSITORY
from trainyard.night.phases import run_night
from trainyard.stores.adapters import AdapterRegistry
from trainyard.testing import night_program

WRITTEN_BELOW = "/srv/trainyard"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The unpacked folder, with the places in its specs and records moved to where it is."""
    folder = tmp_path / "earlier"
    with tarfile.open(REPOSITORY / "tests" / "resources" / "homes" / "4b25bfd.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    for path in (*folder.glob("home/jobs/*.json"), *folder.glob("home/runs/training/*/spec.json")):
        path.write_text(path.read_text().replace(WRITTEN_BELOW, str(folder)))
    return folder


@pytest.mark.filterwarnings("ignore::FutureWarning")  # between peft and transformers
def test_an_earlier_adapter_is_whole_and_loads(earlier: Path) -> None:
    registry = AdapterRegistry(earlier / "home" / "adapters")
    (version,) = registry.list()
    assert (version.name, registry.live("acme", "helper").version) == ("acme/helper/v1", 1)
    registry.verify(version)
    base = AutoModelForCausalLM.from_pretrained(earlier / "model")
    assert PeftModel.from_pretrained(base, registry.path(version)).peft_config["default"].r == 2


def test_an_earlier_night_is_read_and_not_repeated(earlier: Path) -> None:
    folder = earlier / "night"
    assert night_program.state(folder) == json.loads((earlier / "night-state.json").read_text())
    again = night_program.run(folder)
    assert (again.state, again.skipped) == ("skipped", "this night is done already")
    following = run_night(night_program.config(), night_program.world(folder), "20270103")
    assert (following.state, following.phase2.trainings) == ("completed", ())
    # The rules have a new version since, so the documents are read again, and add nothing.
    assert (following.phase1.done, following.phase1.new_entities, following.phase1.new_relations) == (2, 0, 0)
