"""What a reader relies on to find things: imports have one direction."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests.architecture.test_budgets import ROOMS


def import_cycle(*packages: str) -> str:
    """One cycle of imports between the modules of these packages, `a -> b -> a`; empty where there is none.

    Imports inside functions and below `if TYPE_CHECKING` count.
    """
    graph = grimp.build_graph(packages[0], *packages[1:], cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return ""


def test_no_modules_import_each_other() -> None:
    assert import_cycle(*ROOMS) == ""


@pytest.mark.parametrize(
    "last",
    [
        "from cyclic import first\n",
        "import cyclic.first\n",
        "from cyclic.first import NAME\n",
        "from . import first\n",
        "def load():\n    from cyclic.first import NAME\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from cyclic.first import NAME\n",
    ],
)
def test_a_cycle_is_found(last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "cyclic"
    package.mkdir()
    for name, text in {
        "__init__": "", "other": "", "first": "from cyclic import middle, other\nNAME = 1\n",
        "middle": "import cyclic.last\n", "last": last,
    }.items():  # fmt: skip
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    cycle = import_cycle("cyclic").split(" -> ")
    assert cycle[0] == cycle[-1]
    assert set(cycle) == {"cyclic.first", "cyclic.middle", "cyclic.last"}
