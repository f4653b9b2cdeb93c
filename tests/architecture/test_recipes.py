"""The recipes of CONTRIBUTING, each performed with a toy on one copy of the package.

A toy does something of its own: it has its own loss, update, curve, weights, server or files, and is used once. An edit
is one file that is changed, or one file or folder that is added. A recipe takes two of them at most, next to the lines
by which a table (`table.py`, `kinds.py`) names the new code; the test of a value comes on top.
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
            Edit(
                "train/optimizers.py", "OPTIMIZERS: dict",
                "class SignDescent(torch.optim.Optimizer):\n"
                "    def __init__(self, groups):\n"
                '        super().__init__(groups, {"lr": 1.0})\n\n'
                "    @torch.no_grad()\n"
                "    def step(self):\n"
                "        for group in self.param_groups:\n"
                '            for weight in group["params"]:\n'
                '                weight.sub_(group["lr"] * weight.grad.sign())\n\n\n',
            ),
            Edit(
                "train/optimizers.py", "    Optimizer.SGD: ",
                "    Optimizer.TOY: lambda groups: CompositeOptimizer(sign=SignDescent(drop_names(groups))),\n",
            ),
        ),
        "import torch; from trainyard.train.optimizers import available, make_optimizer\n"
        "toy = Config(hyperparameters={'optimizer': 'toy'})\n"
        "assert find_refused_settings(toy) == {} and available(toy.hyperparameters.optimizer).ok\n"
        "assert toy.hyperparameters.optimizer in BackendName.NATIVE.facts.optimizers\n"
        "weight = torch.nn.Parameter(torch.tensor([1.0, 1.0])); weight.grad = torch.tensor([-3.0, 0.2])\n"
        "make_optimizer([{'params': [weight], 'names': ['w'], 'lr': 0.25, 'weight_decay': 0.0}], toy).step()\n"
        "assert weight.tolist() == [1.25, 0.75]\n",
    ),
    "schedule": Recipe(
        (
            Edit("spec/axes/schedules.py", "    LINEAR = ", '    TOY = ScheduleFacts("toy")\n'),
            Edit(
                "spec/rates.py", "def constant(",
                "def saw(step: int, total: int, warmup: int) -> float:\n"
                "    return rising(step, warmup) if step < warmup else 1.0 - (step - warmup) % 4 / 4\n\n\n",
            ),
            Edit("spec/rates.py", "    Schedule.LINEAR: ", "    Schedule.TOY: saw,\n"),
        ),
        "from trainyard.spec.rates import SCHEDULES; toy = Config(hyperparameters={'schedule': 'toy'})\n"
        "assert find_refused_settings(toy) == {}\n"
        "rates = [SCHEDULES[toy.hyperparameters.schedule](step, 9, 1) for step in range(1, 7)]\n"
        "assert rates == [1.0, 0.75, 0.5, 0.25, 1.0, 0.75]\n",
    ),
    "latent": Recipe(
        (
            Edit("spec/axes/latent.py", "    COCONUT = ", '    TOY = LatentFacts("toy", settings=PauseSettings)\n'),
            Edit(
                "train/latent/toy.py", "",
                "import torch\n\nfrom trainyard.train.latent import pause\n"
                "from trainyard.train.latent.contract import LatentSpec\n\n\n"
                "class SilentModule(pause.PauseModule):\n"
                "    def __init__(self, model, settings):\n"
                "        super().__init__(model, settings)\n"
                "        self.vectors_KD = torch.nn.Parameter(torch.zeros_like(self.vectors_KD))\n\n\n"
                "TOY = LatentSpec(lambda model, _, settings: SilentModule(model, settings), pause.stage)\n",
            ),
            Edit(
                "train/latent/table.py", "from trainyard.train.model", "from trainyard.train.latent.toy import TOY\n"
            ),
            Edit("train/latent/table.py", "    Latent.COCONUT: ", "    Latent.TOY: TOY,\n"),
        ),
        "from trainyard.train.latent.table import TECHNIQUES, prepare; from transformers import LlamaForCausalLM\n"
        "toy = Config(stage={'type': 'sft', 'latent': {'type': 'toy', 'count': 2}})\n"
        "assert find_refused_settings(toy) == {} and toy.stage.technique.type in TECHNIQUES\n"
        "weights = prepare(LlamaForCausalLM(tiny_config()), None, toy.stage.technique).state_dict()\n"
        "assert weights['vectors_KD'].shape == (1, 16) and not weights['vectors_KD'].any()\n",
    ),
    "method": Recipe(
        (
            Edit(
                "spec/axes/methods.py", "    LORA = ",
                '    TOY = MethodFacts("toy", settings=FullSettings, summed=False)\n',
            ),
            Edit(
                "train/methods/toy.py", "",
                "def norms(model, _request):\n"
                "    for name, weight in model.named_parameters():\n"
                '        weight.requires_grad_("norm" in name)\n'
                "    return []\n",
            ),
            Edit("train/methods/table.py", "METHODS: dict", "from trainyard.train.methods.toy import norms  # noqa\n"),
            Edit(
                "train/methods/table.py", "    Method.LORA: ",
                "    Method.TOY: MethodSpec(load_base, plain_groups, choose=norms),\n",
            ),
        ),
        "from trainyard.train.methods.table import METHODS; from transformers import LlamaForCausalLM\n"
        "toy = Config(method='toy'); model = LlamaForCausalLM(tiny_config())\n"
        "assert find_refused_settings(toy) == {} and not toy.method.facts.adapter\n"
        "METHODS[toy.method.type].choose(model, None)\n"
        "moving = [name for name, weight in model.named_parameters() if weight.requires_grad]\n"
        "assert len(moving) == 3 and all('norm' in name for name in moving)\n",
    ),
    "stage": Recipe(
        (
            Edit(
                "spec/axes/stages.py", "    SFT = ",
                '    TOY = StageFacts("riddle", ports=(Port.SFT,), learning_rates=(1e-5, 1e-4), packable=True)\n',
            ),
            Edit(
                "train/losses/toy.py", "",
                "from dataclasses import replace\n\nfrom trainyard.spec.axes.stages import Stage\n"
                "from trainyard.train.losses.sft import SFT\n\n\n"
                "def loss(_batch, policy, _reference, _config):\n"
                '    """Focal loss: tokens that are already likely count less (arXiv 1708.02002)."""\n'
                '    logprobs_N = policy["logprobs_N"]\n'
                "    return -((1 - logprobs_N.exp()) ** 2 * logprobs_N).sum(), {}\n\n\n"
                "TOY = replace(SFT, facts=Stage.TOY.facts, loss=loss, choose=None)\n",
            ),
            Edit("train/losses/table.py", "STAGES: dict", "from trainyard.train.losses.toy import TOY\n\n"),
            Edit("train/losses/table.py", "    Stage.SFT: ", "    Stage.TOY: TOY,\n"),
        ),
        "from trainyard.spec.training import resolve_trainer; from trainyard.train.losses.table import STAGES\n"
        "import torch; toy = Config(stage='riddle', backend='script', launch={'script': 'mine'})\n"
        "toy = resolve_trainer(toy, 'base'); half = {'logprobs_N': torch.tensor([0.5, 0.5]).log()}\n"
        "assert toy.hyperparameters.learning_rate == 1e-4 and find_refused_settings(toy) == {}\n"
        "value, _ = STAGES[toy.stage.type].loss({}, half, None, toy)\n"
        "assert abs(float(value) - 2 * 0.25 * 0.693147) < 1e-5\n",
    ),
    "quantization": Recipe(
        (
            Edit(
                "spec/axes/quantization.py", "    FP4 = ",
                '    TOY = QuantizationFacts("toy", package=BITSANDBYTES, note="A toy.", bits=1.0)\n',
            ),
            Edit(
                "train/quantization.py", "    if row.calibrates or",
                "    if format is Quantization.TOY:\n        return None  # `convert` does it\n",
            ),
            Edit(
                "train/quantization.py", "    if format is not Quantization.HQQ_INT4:",
                "    if format is Quantization.TOY:\n"
                "        layers = [one for one in model.modules() if type(one) is torch.nn.Linear]\n"
                "        for layer in layers:\n"
                "            layer.weight.data = layer.weight.data.sign() * layer.weight.data.abs().mean()\n"
                "        return len(layers)\n",
            ),
        ),
        "import torch; from trainyard.train.quantization import convert, load_config, probe\n"
        "toy = Config(method='qlora', quantization='toy'); model = torch.nn.Sequential(torch.nn.Linear(8, 8))\n"
        "assert find_refused_settings(toy) == {} and probe(toy.quantization, 'cpu').ok\n"
        "assert load_config(toy.quantization, 'cpu') is None and convert(model, toy.quantization, 'cpu') == 1\n"
        "assert len(model[0].weight.abs().unique()) == 1\n",
    ),
    "target": Recipe(
        (
            Edit("spec/axes/targets.py", "    EMBEDDED = ", '    TOY = TargetFacts("toy", server="none")\n'),
            Edit(
                "serve/targets/toy.py", "",
                "from trainyard.callbacks import ignore\n"
                "from trainyard.serve.targets.contract import Actions, accept_site\n\n\n"
                "def sign(site):\n"
                '    """Write which version is live into the file that the target names."""\n'
                '    with open(site.target.path_prefix[1], "w") as file:\n'
                "        file.write(site.new.name)\n\n\n"
                "ACTIONS = Actions(accept_site, ignore, ignore, sign, ignore, ignore)\n",
            ),
            Edit("serve/targets/table.py", "TARGETS: dict", "from trainyard.serve.targets import toy\n\n"),
            Edit("serve/targets/table.py", "    TargetType.EMBEDDED: ", "    TargetType.TOY: toy.ACTIONS,\n"),
        ),
        "import tempfile; from pathlib import Path; from types import SimpleNamespace\n"
        "from trainyard.spec.nodes import Target; from trainyard.serve.targets.table import TARGETS\n"
        "file = Path(tempfile.mkdtemp()) / 'live'; toy = Target(type='toy', path_prefix=('/a', str(file)))\n"
        "site = SimpleNamespace(target=toy, new=SimpleNamespace(name='default/desk/v1'))\n"
        "assert TARGETS[toy.type].check(site) == []\n"
        "TARGETS[toy.type].switch(site); assert file.read_text() == 'default/desk/v1'\n",
    ),
    "backend": Recipe(
        (
            Edit(
                "spec/axes/backends.py", "    TRL = ",
                '    TOY = BackendFacts("toy", stages=(Stage.SFT,), methods=(Method.FULL,))\n',
            ),
            Edit(
                "backends/toy/backend.py", "",
                "from trainyard.backends.base import Probe\nfrom trainyard.backends.programs import ExternalProgram\n"
                "from trainyard.spec.axes.backends import BackendName\n\n\n"
                "class ToyProgram(ExternalProgram):\n"
                "    def probe(self, settings=None):\n"
                '        return Probe(True, version="1")\n\n\n'
                "BACKEND = ToyProgram(BackendName.TOY)\n",
            ),
            Edit(
                "backends/toy/program.py", "",
                "import json\n\n\n"
                "def train(folder, events):\n"
                '    rows = json.loads((folder / "spec.json").read_text())["rows"]\n'
                '    events.emit("progress", step=1, loss=1 / rows)\n'
                '    (folder / "result" / "model").mkdir(parents=True)\n'
                '    (folder / "result" / "model" / "training.json").write_text(json.dumps({"steps": 1}))\n',
            ),
        ),
        "import subprocess, tempfile; from pathlib import Path; from trainyard.backends.base import load_program\n"
        "toy = Config(backend='toy', stage='dpo', method='lora'); folder = Path(tempfile.mkdtemp())\n"
        "assert list(find_refused_settings(toy)) == ['stage', 'method']\n"
        "(folder / 'spec.json').write_text('{\"rows\": 4}')\n"
        "subprocess.run(load_program(toy.backend).command(None, folder), check=True)\n"
        "assert json.loads((folder / 'result/model/training.json').read_text()) == {'steps': 1}\n"
        "lines = [json.loads(line) for line in (folder / 'events.jsonl').read_text().splitlines()]\n"
        "assert [line['loss'] for line in lines if line['event'] == 'progress'] == [0.25]\n",
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
        "rows = {name: row for word in table.MODULES for name, row in table.list_rows(word).items()}\n"
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
from trainyard.spec.compat.backends import find_refused_settings
from trainyard.spec.training import TrainerConfig as Config

def tiny_config():
    from transformers import LlamaConfig
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 32}
    return LlamaConfig(num_hidden_layers=1, **sizes)


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
def recipe_problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
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
    problems: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return problems


def count_edits(recipe: Recipe) -> int:
    """Count changed files and added files or folders; a table that gets an import and a row of its own is no edit."""
    added = {edit.file for edit in recipe.edits if not edit.before}
    changed = {edit.file for edit in recipe.edits} - added
    lines = {file: sum(edit.lines.count("\n") for edit in recipe.edits if edit.file == file) for file in changed}
    named = {file for file in changed if added and file.endswith(("table.py", "kinds.py")) and lines[file] <= 3}
    return len(changed - named) + len({str(Path(file).parent) for file in added})


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_takes_two_edits(name: str, recipe_problems: dict[str, str]) -> None:
    assert count_edits(RECIPES[name]) <= 2
    assert recipe_problems[name] == ""


@pytest.mark.parametrize("name", RECIPES)
def test_contributing_names_what_a_recipe_edits(name: str) -> None:
    """Each file, or its folder: the line of a recipe in CONTRIBUTING says `spec/axes/<axis>.py` or `backends/`."""
    lines = dict(LINE.findall((REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    named = [re.sub("<[a-z]+>", "[a-z]+", path) for path in PATH.findall(lines[LINES.get(name, "Value of an axis")])]
    patterns = [f"{path}.+" if path.endswith("/") else path for path in named]
    assert not [
        edit.file for edit in RECIPES[name].edits if not any(re.fullmatch(pattern, edit.file) for pattern in patterns)
    ]
