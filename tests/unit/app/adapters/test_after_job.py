"""What comes after a job, by the job's name and without a server: chat, serve, convert, merge, register, compare."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.serve.fitting_adapter import fitting_adapter
from trainyard.app.chains.run import add_next_commands
from trainyard.app.context import Caller, Context
from trainyard.app.live.jobs import open_index
from trainyard.app.run_records import NodeResult, NodeState, RunRecord, RunResult
from trainyard.errors import Conflict, InvalidInput, NotFound, TrainyardError
from trainyard.settings import load_settings
from trainyard.spec.axes.data import Port
from trainyard.spec.states import JobState
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.artifacts import ArtifactStore, Produced, ProducedSet
from trainyard.stores.models import chat_template_sha256, model_sha256
from trainyard.surfaces.cli.command import render
from trainyard.surfaces.invocation import build_request, execute_operation
from trainyard.surfaces.serve import find_model

pytestmark = pytest.mark.integration

RUNS = {"desk": "aaaa1111-0000-4000-8000-000000000001", "shop": "bbbb2222-0000-4000-8000-000000000002"}
IDS = {"desk": "job-aaaaaaaaaaaa", "shop": "job-bbbbbbbbbbbb"}
RUN_NAMES = {"desk": "desk-1f2e3d4c", "shop": "shop-2f2e3d4c"}


class Yard:
    """A home with ended jobs, as their runs leave them."""

    def __init__(self, home: Path, base: Path) -> None:
        self.home, self.base = home, base
        self.context = Context(load_settings(home=home), say=lambda _text: None)

    def job(
        self,
        name: str,
        *,
        trainers: tuple[str, ...] = ("trainer",),
        tenant: str = "default",
        kind: Port = Port.ADAPTER,
        **node: Any,
    ) -> None:
        """A job with trainers, each of which has left an adapter; `node` are settings of the last one."""
        record = RunRecord(self.home / "runs" / RUNS[name])
        base_hashes = {"base_sha256": model_sha256(self.base), "chat_template_sha256": chat_template_sha256(self.base)}
        nodes = [
            {"id": trainer, "type": "trainer", "needs": [], "produces": ["adapter"], "config": {}}
            for trainer in trainers
        ]
        nodes[-1] |= node
        record.begin({"name": name, "tenant": tenant, "nodes": nodes})
        results = []
        for number, trainer in enumerate(trainers):

            def make(folder: Path, at: int = number) -> Produced:
                if kind is Port.MODEL:
                    shutil.copytree(self.base, folder / "model")
                else:
                    fitting_adapter(folder / "adapter", self.base, adapter_run="yes", steps=at, **base_hashes)
                return Produced(outputs={kind: ProducedSet(folder=kind.value)})

            key = f"{name}{number}".encode().hex().ljust(64, "0")
            output = ArtifactStore(self.context.settings.artifacts).produce(key, make)
            record.emit(trainer, "finished", key=key, rows={}, facts={})
            state = NodeState.COMPLETED
            results.append(
                NodeResult(id=trainer, type="trainer", state=state, outputs=output.outputs, facts={"steps": 3})
            )
        result = RunResult(
            id=IDS[name], run_id=RUNS[name], name=RUN_NAMES[name], chain=name, state=JobState.COMPLETED, message="",
            nodes=tuple(results),
        )  # fmt: skip
        record.finish(result)

    def call(self, operation: str, **fields: Any) -> Any:
        return execute_operation(operation, build_request(operation, fields), self.context)


@pytest.fixture
def yard(home: Path, tiny_model: Path) -> Yard:
    return Yard(home, tiny_model)


@pytest.mark.parametrize("word", ["desk", "desk-1f2e3d4c", "job-aaaaaaaaaaaa", "aaaa1111", "job-aaaa"])
def test_a_job_is_found_by_each_of_its_names(yard: Yard, word: str) -> None:
    yard.job("desk")
    yard.job("shop")
    done = yard.call("adapters register", job=word, role="support")
    assert (done.version, done.job, done.live, done.evaluated) == ("default/support/v1", IDS["desk"], False, False)


def test_registering_twice_is_one_version_and_promote_makes_it_live(yard: Yard) -> None:
    yard.job("desk")
    first = yard.call("adapters register", job="desk", role="support")
    again = yard.call("adapters register", job="desk", role="support", promote=True)
    assert (again.version, again.live, again.adapter_run) == (first.version, True, True)
    text = render("adapters register", again)
    assert "default/support/v1 is live: the adapter of job-aaaaaaaaaaaa, not evaluated" in text
    assert "  trainyard chat default/support/v1" in text
    with pytest.raises(InvalidInput, match="E-PARAMETER: --target belongs to --promote"):
        yard.call("adapters register", job="desk", role="support", targets=("registry",))
    with pytest.raises(InvalidInput, match="E-NAME"):
        yard.call("adapters register", job="desk", role="../x")


def test_of_several_trainers_the_last_is_meant_or_one_is_named(yard: Yard) -> None:
    yard.job("desk", trainers=("trainer", "trainer-2"), needs=["trainer"])
    assert yard.call("adapters register", job="desk", role="last").version == "default/last/v1"
    registry = AdapterRegistry(yard.context.settings.adapters)
    last, first = registry.show("default/last/v1"), yard.call("adapters register", job="desk/trainer", role="first")
    assert registry.show(first.version).sha256 != last.sha256
    yard.job("shop", trainers=("trainer", "trainer-2"))
    with pytest.raises(InvalidInput, match=r"E-NODE: The job shop has 2 adapters\..*shop/trainer, shop/trainer-2"):
        yard.call("adapters register", job="shop", role="x")


def test_a_control_is_not_meant_and_not_registered(yard: Yard) -> None:
    yard.job("desk", trainers=("trainer", "control"), config={"control": "shuffled_answers"})
    assert yard.call("adapters register", job="desk", role="support").version == "default/support/v1"


def test_unknown_running_and_ambiguous_jobs_are_told(yard: Yard) -> None:
    yard.job("desk")
    RunRecord(yard.home / "runs" / RUNS["shop"]).begin({"name": "shop", "nodes": []})
    with pytest.raises(NotFound, match="E-JOB-NOT-FOUND: There is no ended job 'nobody'"):
        yard.call("adapters register", job="nobody", role="x")
    with pytest.raises(NotFound, match="It has not ended yet"):
        yard.call("adapters register", job="shop", role="x")
    yard.job("shop")
    with pytest.raises(Conflict, match="means several jobs: job-bbbbbbbbbbbb, job-aaaaaaaaaaaa"):
        yard.call("adapters register", job="job-", role="x")
    with pytest.raises(NotFound, match=r"E-ADAPTER-NOT-FOUND: .*An ended job has one, too"):
        yard.call("chat", adapter="nobody", questions=("Hello?",))


def test_another_tenants_job_is_not_there(yard: Yard) -> None:
    yard.job("desk", tenant="red")
    blue = replace(yard.context, caller=Caller("blue", tenant="blue", remote=True))
    with pytest.raises(NotFound, match="E-JOB-NOT-FOUND"):
        execute_operation("adapters register", build_request("adapters register", {"job": "desk", "role": "x"}), blue)
    red = replace(yard.context, caller=Caller("red", tenant="red", remote=True))
    done = execute_operation("adapters register", build_request("adapters register", {"job": "desk", "role": "x"}), red)
    assert done.version == "red/x/v1"


def test_jobs_are_compared_by_their_names(yard: Yard) -> None:
    yard.job("desk", config={"seed": 1})
    yard.job("shop", config={"seed": 2})
    comparison = yard.call("compare", job=("desk", "shop"))
    assert comparison.jobs == (IDS["desk"], IDS["shop"])
    assert [(setting.name, setting.values) for setting in comparison.settings] == [("trainer.seed", (1, 2))]
    assert [metric.name for metric in comparison.metrics] == ["steps"]
    assert "trainer.seed" in render("compare", comparison)


def test_the_next_commands_have_real_names(yard: Yard) -> None:
    yard.job("desk")
    result = add_next_commands(read(yard, "desk"), yard.context)
    assert result.next == (
        "trainyard chat desk-1f2e3d4c",
        "trainyard serve desk-1f2e3d4c",
        "trainyard adapters register desk-1f2e3d4c --role desk --promote  # nothing was held out and evaluated",
        "trainyard adapters convert desk-1f2e3d4c desk.gguf --to gguf",
        "trainyard adapters merge desk-1f2e3d4c desk-merged",
    )
    assert render("run", result).endswith("\n".join(["next:", *(f"  {command}" for command in result.next)]))
    failed = add_next_commands(result.model_copy(update={"state": JobState.FAILED, "nodes": ()}), yard.context)
    assert failed.next == ("trainyard jobs logs desk-1f2e3d4c", "trainyard jobs resume desk-1f2e3d4c")
    paused = add_next_commands(result.model_copy(update={"state": JobState.PAUSED}), yard.context)
    assert paused.next == ("trainyard jobs resume desk-1f2e3d4c",)
    yard.call("adapters register", job=result.name, role="desk")  # what is printed can be called


def test_the_next_commands_have_the_name_that_a_user_gave(yard: Yard) -> None:
    """As long as no other run has it: the commands are called after they are printed."""
    yard.job("desk")
    keep_index(yard, "desk-1f2e3d4c")
    assert add_next_commands(read(yard, "desk"), yard.context).next[0] == "trainyard chat desk"
    assert yard.call("jobs show", job="desk").next[0] == "trainyard chat desk"
    keep_index(yard, "desk-1f2e3d4c", "desk-2f2e3d4c")
    assert add_next_commands(read(yard, "desk"), yard.context).next[0] == "trainyard chat desk-1f2e3d4c"


def test_the_next_commands_have_no_template_for_a_name(yard: Yard) -> None:
    """The next run of the template has it, too."""
    yard.job("desk")
    keep_index(yard, "qa-pipeline-1f2e3d4c")
    result = read(yard, "desk").model_copy(update={"name": "qa-pipeline-1f2e3d4c", "chain": "qa-pipeline"})
    assert add_next_commands(result, yard.context).next[0] == "trainyard chat qa-pipeline-1f2e3d4c"


def keep_index(yard: Yard, *names: str) -> None:
    """An index in step, with a row for each name; the first one is that of `desk`."""
    ids = [RUNS["desk"], *(f"cccc{number:04}-0000-4000-8000-00000000000{number}" for number in range(9))]
    rows = [
        {
            "run_id": run_id, "id": f"job-{run_id[-12:]}", "name": name, "tenant": "default", "state": "completed",
            "detail": "", "message": "", "created": 1.0, "started": 1.0, "seconds": 1.0, "attempts": 1, "pid": None,
            "url": "", "parameters": {}, "tags": ["job"], "stage": "sft", "method": "lora", "backend": "native",
            "base_model": "", "trainings": [],
        }
        for run_id, name in zip(ids, names, strict=False)
    ]  # fmt: skip
    index = open_index(yard.context.settings)
    index.note_success(time.time())
    index.note_try(time.time())
    index.put(rows, time.time())


def read(yard: Yard, name: str) -> RunResult:
    path = yard.home / "runs" / RUNS[name] / "result.json"
    return RunResult.model_validate_json(path.read_text()) if path.is_file() else pytest.fail("no result")


def run_card(folder: Path) -> str:
    """Run the Python code of the card of a folder, as a reader of it would; returns what it prints."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    code = card.split("```python\n", 1)[1].split("\n```", 1)[0]
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_registered_and_converted_folders_are_complete_and_their_cards_run(yard: Yard, tmp_path: Path) -> None:
    yard.job("desk")
    yard.call("adapters convert", source="desk", target=tmp_path / "converted", to="peft")
    version = yard.call("adapters register", job="desk", role="support").version
    registry = AdapterRegistry(yard.context.settings.adapters)
    registered = registry.path(registry.verify(registry.show(version)))  # the card is not among the digests
    files = {
        "README.md", "adapter_config.json", "adapter_model.safetensors", "training.json",
        "tokenizer/tokenizer.json", "tokenizer/chat_template.jinja",
    }  # fmt: skip
    for folder in (tmp_path / "converted", registered):
        assert files <= {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
        assert run_card(folder)
    assert "trained by the job `desk-1f2e3d4c`" in (tmp_path / "converted" / "README.md").read_text()
    assert "registered as `default/support/v1`" in (registered / "README.md").read_text()


def test_merge_takes_a_job_and_names_its_new_spelling(yard: Yard, tmp_path: Path) -> None:
    yard.job("desk")
    done = yard.call("adapters merge", name="desk", target=tmp_path / "merged", dtype="float32")
    assert done.divergence < 1e-3
    assert (tmp_path / "merged" / "model.safetensors").is_file()
    with pytest.raises(InvalidInput, match=r"'out' is not a format.*trainyard adapters merge desk out$"):
        yard.call("adapters merge", name="desk", to="out")
    with pytest.raises(InvalidInput, match=r"No folder is named.*trainyard adapters merge desk FOLDER --to gguf$"):
        yard.call("adapters merge", name="desk", to="gguf")


def test_a_job_is_talked_to_and_asked_by_its_name(yard: Yard) -> None:
    yard.job("desk")
    chat = yard.call("chat", adapter="desk", questions=("Hello?",), max_tokens=4)
    (turn,) = chat.turns
    assert turn.error is None
    assert (chat.adapter.startswith(IDS["desk"]), turn.adapter is not None) == (True, True)
    answer = yard.call("adapters ask", adapter="desk-1f2e3d4c", question="Hello?", max_tokens=4)
    assert (answer.adapter, answer.adapter_version) == (turn.adapter, chat.adapter)


def test_a_whole_model_is_served_and_neither_talked_to_nor_merged(yard: Yard, tmp_path: Path) -> None:
    yard.job("desk", kind=Port.MODEL)
    result = add_next_commands(read(yard, "desk"), yard.context)
    assert result.next == ("trainyard serve desk-1f2e3d4c",)  # over a network, too: no folder of this machine
    model = find_model("desk", yard.context)
    assert model is not None
    assert (model / "config.json").is_file()
    with pytest.raises(InvalidInput, match=r"E-ADAPTER-INVALID: .* trained a whole model, not an adapter"):
        yard.call("chat", adapter="desk", questions=("Hello?",))
    with pytest.raises(InvalidInput, match="E-MERGE: desk-1f2e3d4c is a whole model"):
        yard.call("adapters merge", name="desk", target=tmp_path / "merged")


def test_serve_takes_a_job_for_the_role_model_alone(yard: Yard) -> None:
    yard.job("desk")
    with pytest.raises(InvalidInput, match="E-PARAMETER: JOB belongs to the role model, not to training"):
        yard.call("serve", job="desk", role="training")
    with pytest.raises(TrainyardError, match="E-ADAPTER-NOT-FOUND"):
        yard.call("serve", job="nobody")
