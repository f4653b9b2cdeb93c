"""The recipes of CONTRIBUTING, each performed with a toy value on one copy of the package.

An edit is one file that is changed or added. A recipe takes two of them at most; the test of a value is a third.
"""

from __future__ import annotations

import json
import re
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
                '    TOY = OptimizerFacts("toy", why="A toy.", state_bytes=1)\n',
            ),
            Edit("train/optimizers.py", "    Optimizer.SGD: ", "    Optimizer.TOY: muon,\n"),
        ),
        "from trainyard.train.optimizers import available; toy = Config(hyperparameters={'optimizer': 'toy'})\n"
        "assert refused_settings(toy) == {} and available(toy.hyperparameters.optimizer).ok\n"
        "assert toy.hyperparameters.optimizer in BackendName.NATIVE.facts.optimizers\n",
    ),
    "schedule": Recipe(
        (
            Edit("spec/axes/schedules.py", "    LINEAR = ", '    TOY = ScheduleFacts("toy", constant=True)\n'),
            Edit("spec/rates.py", "    Schedule.LINEAR: ", "    Schedule.TOY: constant,\n"),
        ),
        "from trainyard.spec.rates import SCHEDULES; toy = Config(hyperparameters={'schedule': 'toy'})\n"
        "assert refused_settings(toy) == {} and SCHEDULES[toy.hyperparameters.schedule](1, 2, 0) == 1.0\n",
    ),
    "latent": Recipe(
        (
            Edit("spec/axes/latent.py", "    COCONUT = ", '    TOY = LatentFacts("toy", settings=PauseSettings)\n'),
            Edit("train/latent/table.py", "    Latent.COCONUT: ", "    Latent.TOY: PAUSE,\n"),
        ),
        "from trainyard.train.latent.table import TECHNIQUES\n"
        "toy = Config(stage={'type': 'sft', 'latent': {'type': 'toy', 'count': 2}})\n"
        "assert refused_settings(toy) == {} and toy.stage.technique.type in TECHNIQUES\n",
    ),
    "method": Recipe(
        (
            Edit("spec/axes/methods.py", "    LORA = ", '    TOY = MethodFacts("toy")\n'),
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
                '    TOY = StageFacts("riddle", ports=(Port.SFT,), learning_rates=(1e-5, 1e-4), packable=True)\n',
            ),
            Edit("train/losses/table.py", "    Stage.SFT: ", "    Stage.TOY: SFT,\n"),
        ),
        "from trainyard.spec.training import resolve_trainer; from trainyard.train.losses.table import STAGES\n"
        "toy = resolve_trainer(Config(stage='riddle', backend='script', launch={'script': 'mine'}), 'base')\n"
        "assert toy.hyperparameters.learning_rate == 1e-4 and STAGES[toy.stage.type] and refused_settings(toy) == {}\n",
    ),
    "quantization": Recipe(
        (
            Edit(
                "spec/axes/quantization.py", "    FP4 = ",
                '    TOY = QuantizationFacts("toy", package=BITSANDBYTES, note="A toy.", bits=2.0)\n',
            ),
        ),
        "from trainyard.train.quantization.formats import probe; toy = Config(method='qlora', quantization='toy')\n"
        "assert refused_settings(toy) == {} and probe(toy.quantization, 'cpu').ok\n",
    ),
    "target": Recipe(
        (
            Edit("spec/axes/targets.py", "    EMBEDDED = ", '    TOY = TargetFacts("toy", server="none")\n'),
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
                '    TOY = BackendFacts("toy", stages=(Stage.SFT,), methods=(Method.FULL,))\n',
            ),
            Edit("backends/toy/backend.py", "", "from trainyard.backends.mlx.backend import *\n"),
        ),
        "from trainyard.backends.base import probe; toy = Config(backend='toy', stage='dpo', method='lora')\n"
        "assert list(refused_settings(toy)) == ['stage', 'method'] and probe(toy.backend) is not None\n",
    ),
    "format": Recipe(
        (
            Edit("spec/axes/data.py", '    ALPACA = ', '    TOY = FormatFacts("toy", (Port.SFT,))\n'),
            Edit(
                "data/formats/supervised.py", "SHAPES = (",
                "def riddle(record: Record) -> SftRow:\n"
                '    ask, say = (require_text(record[key], key) for key in ("riddle", "solution"))\n'
                '    return SftRow([Message("user", ask), Message("assistant", say)])\n',
            ),
            Edit(
                "data/formats/supervised.py", "    RowShape(",
                '    RowShape("toy", Port.SFT, (DataFormat.TOY,), having("riddle"), riddle),\n',
            ),
        ),
        "from trainyard.data.formats.shapes import Normaliser, detect; from trainyard.spec.nodes import SourceSet\n"
        "from trainyard.spec.axes.data import DataFormat; from trainyard.spec.ports import kinds_of_set\n"
        "assert kinds_of_set(SourceSet(path='a.jsonl', format='toy')) == ('sft',)\n"
        "row = {'riddle': 'What has keys?', 'solution': 'A piano.'}\n"
        "for wanted in (DataFormat.AUTO, DataFormat('toy')):\n"
        "    found = detect([row], wanted, 'a.jsonl')\n"
        "    assert found.format == 'toy' and Normaliser(found)(row)[0].messages[1].content == 'A piano.'\n",
    ),
    "source": Recipe(
        (
            Edit(
                "data/remote/notion.py", "",
                "from trainyard.data.remote.fetching import LocalSet\n\n\n"
                "def fetch_set(job):\n"
                "    folder = job.folder.absolute()\n"
                "    (folder / 'page.md').write_text(f'# {job.source.url}')\n"
                "    yield LocalSet(folder / 'page.md', (folder,), 'page.md', job.selection)\n",
            ),
            Edit(
                "data/remote/kinds.py", "from trainyard.data.remote import",
                "from trainyard.data.remote import notion\n",
            ),
            Edit(
                "data/remote/kinds.py", '    RemoteKind("http"',
                '    RemoteKind("notion", lambda source: str(source.url).startswith("notion:"), notion.fetch_set),\n',
            ),
        ),
        "import tempfile; from pathlib import Path; from trainyard.data.rows import ROWS_FILE, read_rows\n"
        "from trainyard.data.sources import read_source; from trainyard.settings import load_settings\n"
        "from trainyard.spec.nodes import DataSourceConfig\n"
        "folder, config = Path(tempfile.mkdtemp()), DataSourceConfig(url='notion://page')\n"
        "made = read_source(config, folder, settings=load_settings(home=folder), report=lambda fraction, text: None)\n"
        "((port, part),) = made.outputs.items()\n"
        "(row,) = read_rows(folder / part.folder / ROWS_FILE, port)\n"
        "assert (port, row.title, row.source) == ('documents', 'notion://page', 'page.md')\n",
    ),
    "benchmark": Recipe(
        (
            Edit(
                "evals/benchmarks/toy.py", "",
                "def letters(model, cases):\n    return [float(len(case.answer['content'])) for case in cases]\n",
            ),
            Edit(
                "evals/benchmarks/table.py", "from trainyard.evals.cases",
                "from trainyard.evals.benchmarks.toy import letters\n",
            ),
            Edit(
                "evals/benchmarks/table.py", '    "heldout_loss"',
                '    "toy": Benchmark(letters, "letters", True, "answer", 0.0),\n',
            ),
        ),
        "from trainyard.evals.benchmarks.table import benchmark; from trainyard.spec.nodes import EvaluatorConfig\n"
        "from trainyard.evals.cases import Case; case = Case('a.jsonl:1', 'a', answer={'content': 'piano'})\n"
        "assert benchmark('toy').metric == 'letters' and benchmark('toy').score(None, [case]) == [5.0]\n"
        "assert EvaluatorConfig(benchmarks=[{'name': 'toy', 'path': 'a.jsonl'}]).benchmarks[0].name == 'toy'\n",
    ),
    "refusal": Recipe(
        (
            Edit(
                "spec/compat/data.py", "    *SOURCE_ROWS,",
                '    Row(\n        "toy", "R-SOURCE", "data_source", "config.path",\n'
                '        lambda config, _: config.path == "toy",\n'
                '        "The data {config.path!r} is a toy.", "Use data that a model can learn from.",\n    ),\n',
            ),
        ),
        "from trainyard.spec.graph import check\n"
        "node = {'type': 'data_source', 'config': {'path': 'toy'}}\n"
        "(toy,) = [reason for reason in check({'nodes': [node, {'type': 'ai_generator'}]}) if reason.row == 'toy']\n"
        "assert (toy.code, toy.field, toy.because) == ('R-SOURCE', 'config.path', \"The data 'toy' is a toy.\")\n",
    ),
    "operation": Recipe(
        (
            Edit(
                "operations/stack.py", '    "settings": ',
                '    "env toy": Operation("Say where the home is.", request=Nothing, run="app.toy:home", '
                'text=env_text, scope=READ),\n',
            ),
            Edit(
                "app/toy.py", "",
                "from trainyard.app.responses import Response\n\n\n"
                "class Home(Response):\n    home: str\n\n\n"
                "def home(_, context) -> Home:\n    return Home(home=str(context.settings.home))\n",
            ),
        ),
        "import contextlib, io, sys; from trainyard.operations import table\n"
        "from trainyard.surfaces.cli.main import main\n"
        "rows = {name: row for word in table.MODULES for name, row in table.rows_of(word).items()}\n"
        "names = json.dumps({name: row.summary for name, row in rows.items()})  # as `make reference` writes them\n"
        "table.NAMES_FILE.write_text(names); table.read_summaries.cache_clear()\n"
        "printed, sys.argv = io.StringIO(), ['trainyard', 'env', 'toy', '--json']\n"
        "with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit): main()\n"
        "assert json.loads(printed.getvalue())['home']\n",
    ),
}  # fmt: skip
LINES = {
    "backend": "Backend", "format": "Data format", "benchmark": "Benchmark", "refusal": "Refusal",
    "operation": "Operation", "source": "Source of data",
}  # fmt: skip
"""The line of CONTRIBUTING that a recipe is, where it is not that of an axis."""
LINE = re.compile(r"^- \*\*([A-Z][a-z ]+)\*\*(.*?)(?=\n- |\n\n)", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"`([a-z_/<>]+(?:/|\.py))`")
PRELUDE = """
import json, traceback
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.compat.backends import refused_settings
from trainyard.spec.training import TrainerConfig as Config

found = {}
for axis, works in json.load(open("works.json")).items():
    try:
        exec(works, {**globals()})
        found[axis] = ""
    except Exception:
        found[axis] = traceback.format_exc()
print(json.dumps(found))
"""


def apply(edit: Edit, package: Path) -> None:
    path = package / edit.file
    if not edit.before:
        path.parent.mkdir(exist_ok=True)
        path.write_text(edit.lines)
        return
    lines = path.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if line.startswith(edit.before))
    path.write_text("".join([*lines[:at], edit.lines, *lines[at:]]))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Axis -> what went wrong with its toy value. All are added to one copy, and one process uses them."""
    folder = tmp_path_factory.mktemp("recipes")
    shutil.copytree(REPOSITORY / "trainyard", folder / "trainyard", ignore=shutil.ignore_patterns("*.safetensors"))
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


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_takes_two_edits(name: str, found: dict[str, str]) -> None:
    assert len({edit.file for edit in RECIPES[name].edits}) <= 2
    assert found[name] == ""


@pytest.mark.parametrize("name", RECIPES)
def test_contributing_names_what_a_recipe_edits(name: str) -> None:
    """Each file, or its folder: the line of a recipe in CONTRIBUTING says `spec/axes/<axis>.py` or `backends/`."""
    lines = dict(LINE.findall((REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    named = [re.sub("<[a-z]+>", "[a-z]+", path) for path in PATH.findall(lines[LINES.get(name, "Value of an axis")])]
    patterns = [f"{path}.+" if path.endswith("/") else path for path in named]
    assert not [edit.file for edit in RECIPES[name].edits if not any(re.fullmatch(one, edit.file) for one in patterns)]
