"""The package as a user installs it: a wheel, a stack, all templates and the night that really train.

One environment, one server and one worker for all, outside of the checkout; every run is started first and looked at
later, so that they wait for the device and not for each other's tests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.flows.chain_runs import read_record
from tests.flows.installed import Installed, open_installed_stack
from trainyard.app.run_records import NodeState, RunResult
from trainyard.data.corpora import Corpora
from trainyard.night.report import read_report
from trainyard.night.training import tenant_root
from trainyard.serve import embedded
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.files import RealFiles
from trainyard.testing.scripted_server import Exchange, ScriptedServer, ok

pytestmark = [pytest.mark.chains, pytest.mark.timeout(1800)]

PAGE = """# {name}

The {name} reads documents and writes pairs for the trainer.

## Beginning {name}

Beginning the {name} means to open the box and to read its label.

## Ending {name}

Ending the {name} means to close the box and to put it away.
"""
PAGES = ("Alpha", "Beta", "Gamma", "Delta", "Epsilon", "Zeta")
GROUNDED = "Beginning the {name} means to open the box and to read its label {number}."
PLANTED = "Napoleon founded Sweden near {number} volcanoes while juggling turquoise elephants."
CODE = '''"""Tools for wood number {n}."""


def cut_{n}(size):
    """Cut board {n} to a size."""
    check(size)
    return size - {n}


def paint_{n}(board, colour):
    """Paint board {n} in a colour."""
    board.colour = colour
    return board
'''
TRAINING = {"epochs": 6, "learning_rate": 5e-3, "batch_size": 4, "rank": 4, "max_length": 256}
NO_GATE = {"evaluate": False, "deploy": False}


@dataclass
class Writer:
    """A model that answers from the document in every second pair, and makes the others up."""

    serial: Any = field(default_factory=lambda: count(1))
    planted: int = 0

    def reply(self, exchange: Exchange) -> str:
        num_pairs = exchange.body["response_format"]["json_schema"]["schema"]["properties"]["pairs"]["minItems"]
        return json.dumps({"pairs": [self.pair(exchange.body["messages"][1]["content"]) for _ in range(num_pairs)]})

    def pair(self, prompt: str) -> dict[str, Any]:
        number = next(self.serial)
        name = next(page for page in PAGES if page in prompt)
        made_up = number % 2 == 0
        self.planted += made_up
        questions = [f"What about {name}, wording {wording} of {number}?" for wording in range(3)]
        return {"questions": questions, "answer": (PLANTED if made_up else GROUNDED).format(name=name, number=number)}


@dataclass
class Runs:
    """The installed stack, and what was started on it: deployment -> id of the run."""

    installed: Installed
    writer: Writer
    ids: dict[str, str]

    def result(self, deployment: str) -> RunResult:
        result = self.installed.finish(self.ids[deployment])
        assert result is not None
        return result


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Runs]:
    writer = Writer()
    with ScriptedServer(then=ok(writer.reply)) as server:
        endpoints = json.dumps({"writer": {"base_url": server.url}})
        folder = tmp_path_factory.mktemp("installed")
        with open_installed_stack(folder, tiny_model, TRAINYARD_ENDPOINTS=endpoints) as installed:
            yield Runs(installed, writer, start_all(installed))


def start_all(installed: Installed) -> dict[str, str]:
    """Schedule the night and start a run of each template, as a user does it with Prefect's command line."""
    night = schedule_night(installed)
    documents = installed.work / "documents"
    for folder, suffix, text in ((documents, "md", PAGE), (installed.work / "code", "py", CODE)):
        folder.mkdir()
        for n, name in enumerate(PAGES):
            (folder / f"{name}.{suffix}").write_text(text.format(name=name, n=n))
    questions = [(f"What is twice {n}?", f"Twice {n} is {2 * n}.", f"No idea, {n} or so.") for n in range(16)]
    examples = installed.write_rows("examples.jsonl", [{"instruction": q, "output": good} for q, good, _ in questions])
    # A small model says a letter in some completions: rewards that are all alike would teach nothing, and be refused.
    letters = [{"instruction": q, "output": "aeiou"[at % 5]} for at, (q, _, _) in enumerate(questions)]
    checked = installed.write_rows("letters.jsonl", letters)
    pairs = [{"prompt": q, "chosen": good, "rejected": bad} for q, good, bad in questions]
    preferences = installed.write_rows("preferences.jsonl", pairs)
    aligned = {"role": "aligned", "unevaluated": True, "targets": [{"type": "embedded"}]}
    forms: dict[str, dict[str, Any]] = {
        "alignment-pipeline": {
            "sft": examples,
            "preference": preferences,
            "steps": {"validate": False, "evaluate": False, "deploy": True},
            "publish": aligned,
        },
        "rlhf": {
            "sft": examples,
            "preference": preferences,
            "reward": {"max_steps": 8, "learning_rate": 5e-3},
            "ppo": {"max_steps": 2, "completions": 2, "max_completion_length": 16, "batch_size": 4},
            "steps": {"validate": False, **NO_GATE},
        },
        "grpo": {
            "rows": checked,
            "reward": "contains",
            "grpo": {"max_steps": 2, "completions": 4, "max_completion_length": 16, "batch_size": 8},
            "steps": {"validate": False, **NO_GATE},
        },
        "rag-tuning": {"documents": str(documents), "count": 36, "model": "writer", "steps": NO_GATE},
        "code-tuning": {"repository": str(installed.work / "code"), "count": 12, "steps": {"deploy": False}},
        "qa-pipeline": {
            "documents": str(documents),
            "count": 36,
            "steps": {"validate": True, "evaluate": False, "deploy": True},
            "publish": {"role": "qa", "unevaluated": True},
        },
    }
    started = {name: installed.start(f"{name}/local", training=TRAINING, **form) for name, form in forms.items()}
    return {**started, "two-phase": night}


def schedule_night(installed: Installed) -> str:
    commits = [{"diff": f"+wheel {n}\n-spoke {n}", "message": f"Add wheel {n}"} for n in range(12)]
    Corpora(tenant_root(installed.settings, "default") / "corpora", RealFiles()).add("engineering", "sft", commits)
    hyperparameters = {"max_steps": 3, "batch_size": 2, "max_length": 128}
    training = {"method": {"type": "lora", "rank": 4}, "hyperparameters": hyperparameters}
    return installed.schedule(
        "nightly/two-phase",
        config={
            "documents": "examples/night",
            "buckets": [{"name": "engineering", "method": "sft", "threshold": 10}],
            "phase2": {"gate": "none", "training": training},
        },
    )


def test_the_package_is_the_installed_one_and_checks_and_plans(runs: Runs) -> None:
    installed = runs.installed
    chain = installed.work / "chain.yaml"
    chain.write_text("{name: small, nodes: [{type: data_source, config: {path: examples.jsonl}}, {type: trainer}]}")
    assert installed.command("trainyard", "check", str(chain), "--json")
    arguments = ("qa-pipeline", "--preset", "quick", "-p", f"documents={installed.work / 'documents'}", "--json")
    plan = json.loads(installed.command("trainyard", "plan", *arguments))
    assert [node["type"] for node in plan["nodes"]][:2] == ["data_source", "ai_generator"]
    deployment = installed.request("GET", "deployments/name/chain/adhoc")
    shipped = next((installed.bin.parent / "lib").glob("*/site-packages/trainyard/shipped"))
    assert str(shipped) in json.dumps(deployment)


def test_alignment_starts_its_dpo_at_ln_2_and_the_second_adapter_answers(runs: Runs) -> None:
    result = runs.result("alignment-pipeline")
    first, second = read_record(result, "trainer"), read_record(result, "trainer-2")
    assert (first["stage"], second["stage"]) == ("sft", "dpo")
    assert abs(second["losses"][0][1] - math.log(2)) < 1e-3
    url = embedded.find_running(runs.installed.settings)
    body = {"model": "default/aligned", "messages": [{"role": "user", "content": "What is twice 3?"}], "max_tokens": 8}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status().json()
    assert reply["choices"][0]["finish_reason"] in ("stop", "length")
    version = AdapterRegistry(runs.installed.settings.adapters).show("default/aligned")
    (output,) = result.node("trainer-2").outputs.values()
    weights = "adapter_model.safetensors"
    served = AdapterRegistry(runs.installed.settings.adapters).path(version) / weights
    assert served.read_bytes() == (output.path / weights).read_bytes()


def test_rlhf_trains_a_policy_with_the_scores_of_its_reward_model(runs: Runs) -> None:
    result = runs.result("rlhf")
    sft, reward, ppo = (read_record(result, name) for name in ("trainer", "trainer-2", "trainer-3"))
    assert (sft["stage"], reward["stage"], ppo["stage"], ppo["steps"]) == ("sft", "reward", "ppo", 2)
    assert ppo["lineage"] == reward["lineage"]  # both continue the examples
    assert ppo["reward_model_sha256"]


def test_grpo_continues_the_examples_with_a_verifier(runs: Runs) -> None:
    result = runs.result("grpo")
    second = read_record(result, "trainer-2")
    assert (second["stage"], second["steps"]) == ("grpo", 2)
    assert [ancestor["stage"] for ancestor in second["lineage"]] == [None, "sft"]


def test_rag_drops_every_planted_hallucination_and_trains_on_the_rest(runs: Runs) -> None:
    result = runs.result("rag-tuning")
    validated = result.node("validator").facts["sft"]
    assert runs.writer.planted >= 4
    assert validated["dropped"]["ungrounded"] == 3 * runs.writer.planted
    assert read_record(result, "trainer")["steps"] > 0


def test_code_is_learnt_and_evaluated(runs: Runs) -> None:
    result = runs.result("code-tuning")
    assert read_record(result, "trainer")["final_loss"] > 0
    assert result.node("evaluator").state is NodeState.COMPLETED
    assert result.node("evaluator").facts


def test_questions_and_answers_become_a_version(runs: Runs) -> None:
    result = runs.result("qa-pipeline")
    assert read_record(result, "trainer")["steps"] > 0
    assert AdapterRegistry(runs.installed.settings.adapters).show("default/qa").name == "default/qa/v1"


def test_the_night_comes_by_its_schedule_and_trains(runs: Runs) -> None:
    settings = runs.installed.settings
    runs.installed.finish(runs.ids["two-phase"])
    (folder,) = (tenant_root(settings, "default") / "nights").iterdir()
    report = read_report(folder, RealFiles())
    assert report is not None
    assert report.phase1.done >= 20
    assert report.phase1.device_free
    assert [training.version for training in report.phase2.trainings] == ["default/engineering/v1"]
