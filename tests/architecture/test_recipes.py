"""CONTRIBUTING's recipe for a value of an axis, performed with a toy value of each on a copy of the package.

A recipe is a row in `spec/axes/` and, where the value is carried out here, one function in a code table.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import REPOSITORY


class Edit(NamedTuple):
    """Lines that are written before the first line that begins with `before`."""

    file: str
    before: str
    lines: str


class Recipe(NamedTuple):
    edits: tuple[Edit, ...]
    works: str
    """A program that uses the toy value."""


RECIPES = {
    "optimizer": Recipe(
        (
            Edit(
                "spec/axes/optimizers.py", "    SGD = ",
                '    TOY = "toy", OptimizerFacts(why="A toy.", state_bytes=1)\n',
            ),
            Edit("train/optimizers.py", "    Optimizer.SGD: ", "    Optimizer.TOY: sgd,\n"),
        ),
        "from trainyard.train.optimizers import available; toy = Config(hyperparameters={'optimizer': 'toy'})\n"
        "assert refused_settings(toy) == {} and available(toy.hyperparameters.optimizer).ok\n"
        "assert toy.hyperparameters.optimizer in BackendName.NATIVE.facts.optimizers\n",
    ),
    "schedule": Recipe(
        (
            Edit("spec/axes/schedules.py", "    LINEAR = ", '    TOY = "toy", ScheduleFacts(constant=True)\n'),
            Edit("train/schedules.py", "    Schedule.LINEAR: ", "    Schedule.TOY: constant,\n"),
        ),
        "from trainyard.train.schedules import SCHEDULES; toy = Config(hyperparameters={'schedule': 'toy'})\n"
        "assert refused_settings(toy) == {} and SCHEDULES[toy.hyperparameters.schedule](1, 2, 0) == 1.0\n",
    ),
    "method": Recipe(
        (
            Edit("spec/axes/methods.py", "    LORA = ", '    TOY = "toy", MethodFacts()\n'),
            Edit(
                "train/methods/table.py", "    Method.LORA: ",
                "    Method.TOY: MethodSpec(load_base, plain_groups, adapter_config=lora_config),\n",
            ),
        ),
        "toy = Config(method='toy')\n"
        "assert refused_settings(toy) == {} and toy.method.facts.adapter\n"
        "from trainyard.train.methods.table import METHODS; assert METHODS[toy.method.type].adapter_config\n",
    ),
    "stage": Recipe(
        (
            Edit(
                "spec/axes/stages.py", "    SFT = ",
                '    TOY = "riddle", StageFacts(ports=(Port.SFT,), learning_rates=(1e-5, 1e-4), packable=True)\n',
            ),
            Edit("train/stages/table.py", "    Stage.SFT: ", "    Stage.TOY: SFT,\n"),
        ),
        "from trainyard.spec.training import resolve_trainer; from trainyard.train.stages.table import STAGES\n"
        "toy = resolve_trainer(Config(stage='riddle', backend='script', launch={'script': 'mine'}), 'base')\n"
        "assert toy.hyperparameters.learning_rate == 1e-4 and STAGES[toy.stage.type] and refused_settings(toy) == {}\n",
    ),
    "quantization": Recipe(
        (
            Edit(
                "spec/axes/quantization.py", "    FP4 = ",
                '    TOY = "toy", QuantizationFacts(package=BITSANDBYTES, note="A toy.", bits=2.0)\n',
            ),
        ),
        "from trainyard.train.quantization.formats import probe; toy = Config(method='qlora', quantization='toy')\n"
        "assert refused_settings(toy) == {} and probe(toy.quantization, 'cpu').ok\n",
    ),
    "target": Recipe(
        (
            Edit("spec/axes/targets.py", "    EMBEDDED = ", '    TOY = "toy", TargetFacts(server="none")\n'),
            Edit(
                "serve/targets/table.py", "    TargetType.EMBEDDED: ",
                "    TargetType.TOY: Actions(no_objection, ignore, ignore, ignore, ignore, ignore),\n",
            ),
        ),
        "from trainyard.spec.nodes import Target; from trainyard.serve.targets.table import TARGETS\n"
        "assert TARGETS[Target(type='toy').type].check(None) == []\n",
    ),
    "backend": Recipe(
        (
            Edit(
                "spec/axes/backends.py", "    TRL = ",
                '    TOY = "toy", BackendFacts(stages=(Stage.SFT,), methods=(Method.FULL,))\n',
            ),
            Edit("backends/toy/backend.py", "", "from trainyard.backends.mlx.backend import *\n"),
        ),
        "from trainyard.backends.base import probe; toy = Config(backend='toy', stage='dpo', method='lora')\n"
        "assert list(refused_settings(toy)) == ['stage', 'method'] and probe(toy.backend) is not None\n",
    ),
}  # fmt: skip
PRELUDE = """
import json, traceback
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.compat.backends import refused_settings
from trainyard.spec.training import TrainerConfig as Config

found = {}
for axis, works in json.load(open("works.json")).items():
    try:
        exec(works, globals())
        found[axis] = ""
    except Exception:
        found[axis] = traceback.format_exc()
print(json.dumps(found))
"""


def apply(edit: Edit, package: Path) -> None:
    path = package / edit.file
    if not edit.before:
        path.parent.mkdir()
        path.write_text(edit.lines)
        return
    lines = path.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if line.startswith(edit.before))
    path.write_text("".join([*lines[:at], edit.lines, *lines[at:]]))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Axis -> what went wrong with its toy value. All are added to one copy, and one process uses them."""
    folder = tmp_path_factory.mktemp("recipes")
    shutil.copytree(
        REPOSITORY / "trainyard", folder / "trainyard", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
    )
    for recipe in RECIPES.values():
        for edit in recipe.edits:
            apply(edit, folder / "trainyard")
    (folder / "works.json").write_text(json.dumps({axis: recipe.works for axis, recipe in RECIPES.items()}))
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE], cwd=folder, env={"PYTHONPATH": str(folder)}, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.mark.parametrize("axis", RECIPES)
def test_a_value_of_an_axis_is_a_row_and_a_function(axis: str, found: dict[str, str]) -> None:
    assert len(RECIPES[axis].edits) <= 2
    assert found[axis] == ""
