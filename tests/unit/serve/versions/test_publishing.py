"""Versions that travel: from one home to another over a store, and over the Hub's real client and a data worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub import DatasetCard, ModelCard, constants

from tests.data_worker import DataWorker, make_data_worker, serving_data
from tests.unit.serve.conversion.adapter_files import make_adapter
from trainyard.app.adapters import versions
from trainyard.app.context import Context
from trainyard.errors import TrainyardError
from trainyard.loading import load_object
from trainyard.operations.adapters import PromoteInput, PullInput, PushInput
from trainyard.operations.table import OPERATIONS
from trainyard.serve import embedded
from trainyard.settings import load_settings
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion
from trainyard.stores.ledger.log import run_key
from trainyard.stores.ledger.recording import record_step
from trainyard.stores.models import model_sha256
from trainyard.stores.objects.addresses import open_store
from trainyard.stores.repositories.client import DataWorkers
from trainyard.stores.repositories.names import RepositoryName
from trainyard.stores.signing.keys import SigningKeys
from trainyard.surfaces.cli.command import build_request

REPOSITORY = RepositoryName("models", "acme", "assistant")
BASE_FOLDER, BASE_SHA256 = "/models/of/this/machine/tiny", "5" * 64
Call = tuple[str, dict[str, Any]]
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
"""The Hub's client sends files in the way of an earlier version of its own HTTP library."""


class Machine:
    """A home of its own, and the Hub's client, which asks the data worker."""

    def __init__(self, home: Path, hub: DataWorker) -> None:
        self.home, self.hub, self.token = home, hub, hub.token("acme")
        self.registry = AdapterRegistry(home / "adapters")

    def calls(self, *calls: Call, offline: bool = False, **variables: str) -> list[Any]:
        """The results of operations, as JSON, or the text of their errors. The token is in neither."""
        environment = {
            "HF_ENDPOINT": self.hub.url, "HF_HUB_OFFLINE": str(int(offline)), "HF_TOKEN": self.token, **variables,
        }  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**environment, "HF_HOME": str(self.home / "hub")}.items():
                patch.setenv(name, value)
            for name, constant in {"HF_HUB_OFFLINE": offline, "HF_HUB_DISABLE_XET": True}.items():
                patch.setattr(
                    constants, name, constant
                )  # the client reads them from the environment when it is imported
            context = Context(load_settings(home=self.home), say=lambda _text: None)
            results = [self.answer(name, fields, context) for name, fields in calls]
        assert self.token not in json.dumps(results)
        return results

    @staticmethod
    def answer(name: str, fields: dict[str, Any], context: Context) -> Any:
        try:
            done = load_object(f"trainyard.{OPERATIONS[name].run}")(build_request(name, fields), context)
        except TrainyardError as error:
            return str(error)
        return json.loads(done.model_dump_json())

    def add(self, seed: int = 0, **facts: Any) -> AdapterVersion:
        """Register one more version of acme/bot on the tiny model."""
        adapter_folder = self.home.parent / f"made-{self.home.name}-{seed}"
        make_adapter(adapter_folder, base_model_name_or_path=BASE_FOLDER)
        training = {"base_model": "org/tiny", "base_path": BASE_FOLDER, "base_sha256": BASE_SHA256}
        training |= {"stage": "sft", "log_head": "/data/someone/secret", "seed": seed}
        (adapter_folder / "training.json").write_text(json.dumps(training))
        base_facts = {"base_model": "org/tiny", "base_path": BASE_FOLDER, "base_sha256": training["base_sha256"]}
        return self.registry.register("acme", "bot", adapter_folder, facts={**base_facts, "evaluated": False, **facts})


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[DataWorker]:
    with serving_data(make_data_worker(tmp_path / "hub")) as worker:
        yield worker


def download(hub: DataWorker, folder: Path, repository: str = "acme/assistant") -> Path:
    """Write the files of a repository to a folder."""
    workers = DataWorkers([hub.url], hub.token("acme"))
    commit = workers.find_commit("models", repository, "main")
    for entry in workers.list_files("models", repository, commit):
        workers.download("models", repository, commit, entry, folder / entry["path"])
    return folder


def list_summaries(hub: DataWorker, branch: str = "main") -> list[str]:
    """Return the summaries of the commits of a branch, the oldest first, but for the empty one that begins it."""
    commits = [hub.repositories.resolve(REPOSITORY, branch)]
    while commits[0].parent:
        commits.insert(0, hub.repositories.resolve(REPOSITORY, commits[0].parent))
    return [commit.summary for commit in commits if commit.files]


@pytest.fixture
def machines(tmp_path: Path, home: Path, hub: DataWorker) -> tuple[Machine, Machine]:
    here, there = Machine(tmp_path / "a", hub), Machine(tmp_path / "b", hub)
    SigningKeys(there.home).trust(SigningKeys(here.home).own().pem, "here")
    return here, there


def push(name: str = "acme/bot/v1", to: str = "acme/assistant", **more: Any) -> Call:
    return "adapters push", {"name": name, "to": to, **more}


def pull(source: str = "acme/assistant", **more: Any) -> Call:
    return "adapters pull", {"source": source, **more}


def test_version_goes_over_the_hub_to_another_machine_once(
    machines: tuple[Machine, Machine], hub: DataWorker, tmp_path: Path
) -> None:
    here, there = machines
    version = here.add(gate={"better": True, "passed": ["heldout_loss/x: +0.1"]})
    first, again = here.calls(push(), push())
    assert (first["changed"], again["changed"]) == (True, False)
    assert list_summaries(hub) == ["Publish acme/bot/v1"]
    folder = download(hub, tmp_path / "published")
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "org/tiny"
    published = "".join(path.read_text() for path in [*sorted(folder.glob("*.json")), folder / "README.md"])
    assert "/data/someone" not in published
    assert BASE_FOLDER not in published
    assert (folder / "README.md").read_text().startswith('---\nlibrary_name: "peft"\nbase_model: "org/tiny"\n')
    pulled, twice = there.calls(pull(), pull())
    assert (pulled["version"], twice) == ("acme/bot/v1", pulled)
    version_there = there.registry.show("acme/bot/v1")
    assert version_there.facts["origin"]["name"] == "acme/bot/v1"
    assert version_there.facts["origin"]["revision"] == first["revision"]
    assert version_there.facts["gate"] == version.facts["gate"]
    weights = "adapter_model.safetensors"
    assert version_there.files[weights] == version.files[weights]
    there.registry.verify(version_there)


def test_next_version_replaces_the_files_of_the_one_before(machines: tuple[Machine, Machine], hub: DataWorker) -> None:
    here, there = machines
    here.add()
    here.add(seed=2)
    _, second, branch = here.calls(push(), push("acme/bot/v2"), push(revision="stable"))
    assert second["changed"]
    assert branch["changed"]
    assert list_summaries(hub) == ["Publish acme/bot/v1", "Publish acme/bot/v2"]
    assert list_summaries(hub, "stable")[-1] == "Publish acme/bot/v1"
    newest, stable, named = there.calls(pull(), pull(revision="stable"), pull(alias="acme/other"))
    assert [pulled["version"] for pulled in (newest, stable, named)] == ["acme/bot/v1", "acme/bot/v2", "acme/other/v1"]
    assert json.loads((there.registry.root / "acme/bot/v1/training.json").read_text())["seed"] == 2


def test_registered_files_stay_as_they_are_and_no_folder_of_this_machine_is_published(
    machines: tuple[Machine, Machine], hub: DataWorker, tmp_path: Path
) -> None:
    """A base that is named by its folder, and an adapter with a README of its own, which the card replaces."""
    here, _ = machines
    adapter_folder = tmp_path / "own"
    make_adapter(adapter_folder, base_model_name_or_path=BASE_FOLDER)
    (adapter_folder / "training.json").write_text(json.dumps({"base_model": BASE_FOLDER, "base_path": BASE_FOLDER}))
    (adapter_folder / "README.md").write_text("own words")
    version = here.registry.register("acme", "bot", adapter_folder, facts={"base_model": BASE_FOLDER})
    here.calls(push())
    folder = download(hub, tmp_path / "published")
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"
    assert json.loads((folder / "training.json").read_text()) == {"base_model": "tiny"}
    assert "own words" not in (folder / "README.md").read_text()
    texts = [path.read_text() for path in folder.iterdir() if path.suffix in (".json", ".md")]
    assert BASE_FOLDER not in "".join(texts)
    here.registry.verify(version)


def test_wrong_pushes_are_refused_and_leave_nothing(
    machines: tuple[Machine, Machine], hub: DataWorker, tmp_path: Path
) -> None:
    here, _ = machines
    here.add()
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "model.safetensors").write_bytes(b"weights")
    for name in ("acme/full", "acme/open"):
        hub.fill("models", name, tmp_path / "others")
    hub.public.add("acme/open")
    calls = [push(to="acme/full"), push(to="acme/open"), push(to="else/where"), push(to="acme"), push("acme/bot/v9")]
    full, public, foreign, name, unknown = here.calls(*calls, push(to=""))[:5]
    assert full.startswith("E-PUBLISH: The repository acme/full contains files that Trainyard has not published.")
    assert public.startswith("E-PUBLISH: The repository acme/open is public.")
    assert foreign.startswith("E-AUTH: The Hub does not let this account push 'else/where'.")
    assert name.startswith("E-NAME: 'acme' is not a valid name of a Hub repository.")
    assert unknown.startswith("E-ADAPTER-NOT-FOUND: There is no adapter version acme/bot/v9.")
    (without,) = here.calls(push(), HF_TOKEN="")
    assert without.startswith("E-API-KEY: The environment variable HF_TOKEN")
    (other,) = here.calls(push(token_env="MY_TOKEN"))
    assert other.startswith("E-API-KEY: The environment variable MY_TOKEN")
    (offline,) = here.calls(push(), offline=True)
    assert offline.startswith("E-PUBLISH: 'acme/assistant' could not be pushed. Why: HF_HUB_OFFLINE is set.")
    (away,) = here.calls(push(), HF_ENDPOINT="http://127.0.0.1:9")
    assert away.startswith("E-PUBLISH: 'acme/assistant' could not be pushed.")
    assert hub.repositories.find(REPOSITORY) is None


@pytest.mark.parametrize("path", ["/api/repos/create", "/preupload/main", "/commit/main"])
@pytest.mark.parametrize("status", [401, 409, 429, 500])
def test_a_hub_that_fails_gets_all_of_a_version_or_nothing(
    path: str, status: int, machines: tuple[Machine, Machine], hub: DataWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is pushed again, after it has recovered, is one commit."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    here, _ = machines
    here.add()
    hub.failing[path] = status
    (failed,) = here.calls(push())
    words = {401: "E-AUTH: The Hub does not let this account push", 409: "E-PUBLISH: 'acme/assistant' could not be"}
    if (path, status) != ("/api/repos/create", 409):  # somebody else has just made it: it is looked at, and not there
        assert failed.startswith(words.get(status, "E-PUBLISH: 'acme/assistant' could not be pushed.")), failed
    hub.failing.clear()
    assert hub.repositories.find(REPOSITORY) is None or list_summaries(hub) == []
    first, again = here.calls(push(), push())
    assert (first["changed"], again["changed"], len(list_summaries(hub))) == (True, False, 1)


def test_a_version_is_published_with_its_cards_and_the_proof_of_its_training(
    machines: tuple[Machine, Machine], hub: DataWorker, tmp_path: Path
) -> None:
    here, _ = machines
    balance = {"node": "v", "type": "validator", "port": "sft", "read": 9, "kept": 7}
    rows = {
        "balances": [{**balance, "held_out": {"unseen": 1}, "dropped": {"too long": 1}, "sensitive": {}}],
        "generators": [{"node": "pairs", "engine": "extractive", "count": 9}], "synthetic_share": 1.0,
        "filters": [{"node": "v", "near_duplicates": 0.9, "decontaminate_words": 13, "evaluation_sets": 0}],
    }  # fmt: skip
    interval = {"rows": 36, "baseline": 6.1, "candidate": 4.9, "improvement": {"mean": 1.2, "low": 1.1, "high": 1.3}}
    report = {"baseline": "base", "confidence": 0.95, "benchmarks": {"heldout_loss/unseen_documents": interval}}
    source = {"source": "a<b>.jsonl", "format": "alpaca", "rows": 9, "sha256": "1" * 64, "license": "cc-by-4.0"}
    version = here.add(rows=rows, report=report, data=[source], gate={"better": True})
    record(here, version.sha256, "trained")
    store = (tmp_path / "store").as_uri()
    here.calls(push(), push(to=store))
    folder, stored = download(hub, tmp_path / "published"), tmp_path / "store" / "adapters" / "acme" / "bot" / "v1"
    model, data = ModelCard((folder / "README.md").read_text()), DatasetCard((folder / "DATA_CARD.md").read_text())
    (result,) = model.data.eval_results or ()
    assert (result.metric_type, result.metric_value, result.metric_args["low"]) == ("heldout_loss", 4.9, 1.1)
    assert (data.data.license, data.data.tags) == (["cc-by-4.0"], ["trainyard", "synthetic"])
    assert "100% of the rows were generated" in data.text
    assert "share 13 consecutive words" in data.text
    assert "a&lt;b>.jsonl" in data.text
    assert "| entry | 1 |" in model.text
    proof = (folder / "ledger.tlog-proof").read_text()
    assert proof.startswith("c2sp.org/tlog-proof@v1\nindex 1\n")
    before = {path.name: path.read_bytes() for path in stored.iterdir()}
    assert {"README.md", "DATA_CARD.md", "ledger.tlog-proof"} <= before.keys()
    record(here, "2" * 64, "evaluated")
    again, sent = here.calls(push(), push(to=store))
    assert (again["changed"], sent["changed"], len(list_summaries(hub))) == (False, False, 1)
    assert (download(hub, tmp_path / "later") / "ledger.tlog-proof").read_text() == proof
    assert {path.name: path.read_bytes() for path in stored.iterdir()} == before


def record(machine: Machine, sha256: str, kind: str) -> None:
    """Add a step to the ledger of a machine."""
    outputs = {"adapter": {"sha256": sha256}}
    assert record_step(machine.home, kind, run_key(kind, sha256), node="trainer", outputs=outputs) == ""


def test_only_what_the_manifest_says_is_believed(
    machines: tuple[Machine, Machine], hub: DataWorker, tmp_path: Path
) -> None:
    here, there = machines
    here.add()
    here.calls(push())
    folder = download(hub, tmp_path / "changed")
    weights, manifest = folder / "adapter_model.safetensors", folder / "manifest.json"
    good, text = weights.read_bytes(), manifest.read_text()

    def pull_version(offline: bool = False, **variables: str) -> str:
        hub.fill("models", "acme/assistant", folder)
        (line,) = there.calls(pull(), offline=offline, **variables)
        return str(line)

    weights.write_bytes(good[:-1] + b"x")
    assert pull_version().startswith(
        "E-CORRUPT: adapter_model.safetensors of hub:acme/assistant is not what its manifest says"
    )
    weights.unlink()
    assert pull_version().startswith("E-CORRUPT: adapter_model.safetensors of acme/assistant is missing.")
    weights.write_bytes(good)
    manifest.write_text(text.replace("adapter_model.safetensors", "adapter_model.bin"))
    assert pull_version().startswith("E-MODEL-UNSAFE: acme/assistant contains pickled weights: adapter_model.bin.")
    manifest.write_text(text.replace("training.json", "../training.json"))
    assert pull_version().startswith("E-NAME: '../training.json' is not a valid object name.")
    manifest.write_text(text[:-20])
    assert pull_version().startswith("E-CORRUPT: acme/assistant has no valid manifest.json of Trainyard.")
    manifest.unlink()
    assert pull_version().startswith(
        "E-ADAPTER-INVALID: acme/assistant contains no adapter that Trainyard has published."
    )
    weights.rename(folder / "adapter_model.bin")
    assert pull_version().startswith("E-MODEL-UNSAFE: acme/assistant contains pickled weights: adapter_model.bin.")
    assert pull_version(HF_TOKEN=hub.token("other")).startswith(
        "E-MODEL-NOT-FOUND: The Hub has no repository or revision 'acme/assistant'"
    )
    offline = pull_version(offline=True)
    assert offline.startswith("E-MODEL-DOWNLOAD: 'acme/assistant' could not be pulled. Why: HF_HUB_OFFLINE is set.")
    assert there.registry.list() == []
    assert [path.name for path in there.home.glob(".pull-*")] == []


def test_version_goes_over_a_store_and_the_pointer_follows_what_is_live(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    here, there = machines
    store = (tmp_path / "store").as_uri()
    version = here.add()
    first, nothing_live = here.calls(push(to=store), pull(f"{store}/adapters/acme/bot"))
    assert (first["changed"], first["live"]) == (True, False)
    assert nothing_live.startswith("E-ADAPTER-NOT-FOUND: No version of acme/bot is live in file://")
    here.registry.promote("acme/bot/v1")
    again = here.calls(push(to=""), TRAINYARD_WEIGHTS_STORE=store)[0]
    assert (again["changed"], again["live"]) == (False, True)
    live, named = there.calls(
        pull(f"{store}/adapters/acme/bot/live.json"), pull(f"{store}/adapters/acme/bot/v1", alias="team/bot")
    )
    assert (live["version"], live["sha256"], named["version"]) == ("acme/bot/v1", version.sha256, "team/bot/v1")
    assert there.registry.show("acme/bot/v1").files == version.files


def test_half_written_and_foreign_numbers_in_a_store_are_refused(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    here, there = machines
    store = (tmp_path / "store").as_uri()
    here.add()
    here.calls(push(to=store))
    other = Machine(tmp_path / "c", here.hub)
    other.add(seed=5)
    (conflict,) = other.calls(push(to=store))
    assert conflict.startswith("E-PUBLISH: Another adapter is published as acme/bot/v1.")
    weights = tmp_path / "store" / "adapters" / "acme" / "bot" / "v1" / "adapter_model.safetensors"
    source, good = f"{store}/adapters/acme/bot/v1", weights.read_bytes()
    weights.write_bytes(bytes(len(good)))
    (damaged,) = there.calls(pull(source))
    assert damaged.startswith("E-CORRUPT")
    open_store(store).delete("adapters/acme/bot/v1/manifest.json")
    half, wrong, option = there.calls(pull(source), pull(f"{store}/bot"), pull(source, revision="main"))
    assert half.startswith("E-ADAPTER-NOT-FOUND: There is no complete version at file://")
    assert wrong.startswith("E-OBJECT-STORE: ")
    assert option.startswith("E-PARAMETER: --revision and --public belong to the Hub")
    assert there.registry.list() == []


def test_adapter_of_another_base_is_not_pulled(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    here, there = machines
    adapter_folder = tmp_path / "on-starter"
    make_adapter(adapter_folder)
    (adapter_folder / "training.json").write_text(json.dumps({"base_model": "starter", "base_sha256": "0" * 64}))
    here.registry.register("acme", "bot", adapter_folder, facts={"base_model": "starter"})
    store = (tmp_path / "store").as_uri()
    here.calls(push(to=store))
    (refused,) = there.calls(pull(f"{store}/adapters/acme/bot/v1"))
    assert refused.startswith("R-BASE-MISMATCH: It was not pulled.")
    assert there.registry.list() == []


RANDOM_ADAPTER = """
import sys, torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
torch.manual_seed(1)
lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
get_peft_model(AutoModelForCausalLM.from_pretrained(sys.argv[1]), lora).save_pretrained(sys.argv[2])
"""


@pytest.mark.slow
def test_another_machine_serves_what_it_has_pulled(home: Path, tiny_model: Path, tmp_path: Path) -> None:
    """Home A publishes; home B pulls, promotes to its own embedded server, and answers under the alias."""
    adapter_folder, base, store = tmp_path / "made", str(tiny_model), (tmp_path / "store").as_uri()
    subprocess.run([sys.executable, "-c", RANDOM_ADAPTER, base, str(adapter_folder)], check=True, capture_output=True)
    (adapter_folder / "README.md").unlink(missing_ok=True)
    training = {"base_model": base, "base_path": base, "base_sha256": model_sha256(tiny_model)}
    (adapter_folder / "training.json").write_text(json.dumps(training))
    there = load_settings()
    here = Context(there.model_copy(update={"home": tmp_path / "a"}), say=lambda _text: None)
    AdapterRegistry(here.settings.adapters).register("acme", "bot", adapter_folder, facts=training)
    AdapterRegistry(here.settings.adapters).promote("acme/bot/v1")
    assert versions.push(PushInput(name="acme/bot", to=store), here).live
    other = Context(there, say=lambda _text: None)
    pulled = versions.pull(PullInput(source=f"{store}/adapters/acme/bot"), other)
    url = embedded.start(there, base, threads=1)
    try:
        done = versions.promote(PromoteInput(name=pulled.version, targets=("embedded",)), other)
        assert done.targets[0]["answer"]
        body = {"model": "acme/bot", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).raise_for_status().json()
        assert answer["choices"][0]["message"]["content"]
        cards = {card["id"]: card for card in httpx.get(f"{url}/v1/models").json()["data"]}
        assert cards["acme/bot"]["alias_of"] == "acme/bot/v1"
        assert cards["acme/bot"]["root"].startswith(str(home))
    finally:
        embedded.stop(there)
