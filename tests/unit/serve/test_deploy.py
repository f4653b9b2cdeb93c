"""Deployments against real doubles on the loopback: gate, checks, all or none, and what a failure leaves."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from trainyard.errors import NotDeployed, Refused, TrainyardError, Unavailable
from trainyard.serve import embedded as embedded_server
from trainyard.serve.deploy import deploy
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import digest
from trainyard.spec.nodes import DeployerConfig
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.artifacts import Produced, Reference
from trainyard.stores.models import chat_template_sha256, model_sha256
from trainyard.stores.whole import describe_files
from trainyard.testing.vllm_server import VllmDouble, vllm_server

TEMPLATE = "{{ messages }}"
NOT_RUN = "The adapter was never run on its base here: its base base is not on this machine"
TRAINING = {"base_model": "org/base", "base_path": "org/base", "chat_template_sha256": ""}


def reference(folder: Path, kind: Port) -> Reference:
    files = describe_files(folder)
    sha256 = digest({name: entry["sha256"] for name, entry in files.items()})
    return Reference(uri=f"file://{folder}", sha256=sha256, kind=kind)


def make_adapter(folder: Path, config: dict[str, Any] | None = None, **training: Any) -> Reference:
    (folder / "tokenizer").mkdir(parents=True)
    weights = {"base_model.model.layer.lora_A.weight": np.frombuffer(folder.name.encode(), np.uint8)}
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, **(config or {})}))
    (folder / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)
    template_sha256 = hashlib.sha256(TEMPLATE.encode()).hexdigest()
    (folder / "training.json").write_text(json.dumps({**TRAINING, "chat_template_sha256": template_sha256, **training}))
    return reference(folder, Port.ADAPTER)


def make_report(
    folder: Path,
    adapter: Reference,
    *,
    better: bool = True,
    benchmarks: Sequence[Any] = (),
    baseline: str = "base",
    live: str | None = None,
    **gate_fields: Any,
) -> Reference:
    folder.mkdir(parents=True)
    reasons = [] if better else ["heldout_loss/x: improvement -0.1", "forgetting/general: worse"]
    gate = {"better": better, "primary": "heldout_loss/x", "reasons": reasons, "passed": [], **gate_fields}
    compared = {"baseline": baseline, "live": live}
    report = {"adapter_sha256": adapter.sha256, "gate": gate, "benchmarks": list(benchmarks), **compared}
    (folder / "report.json").write_text(json.dumps(report))
    return reference(folder, Port.REPORT)


class Yard:
    """One adapter, its report and a registry, with `deploy` called as the node calls it."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder, settings
        self.registry = AdapterRegistry(settings.adapters)
        self.count = 0
        self.adapter = make_adapter(folder / "adapter")
        self.report: Reference | None = make_report(folder / "report", self.adapter)

    def deploy(self, *targets: dict[str, Any], run_key: str = "", **config: Any) -> Produced:
        self.count += 1
        out = self.folder / f"out{self.count}"
        out.mkdir()
        deployer_config = DeployerConfig.model_validate(
            {"role": "bot", "targets": targets or [{"type": "registry"}], **config}
        )
        return deploy(
            deployer_config,
            adapter=self.adapter,
            report=self.report,
            folder=out,
            settings=self.settings,
            tenant="acme",
            run_key=run_key,
        )

    def live(self) -> int | None:
        return self.registry.live("acme", "bot").version


@pytest.fixture
def yard(tmp_path: Path, home: Path) -> Yard:
    return Yard(tmp_path, load_settings())


@pytest.fixture
def vllm() -> Iterator[VllmDouble]:
    with vllm_server("org/base") as double:
        yield double


@pytest.fixture
def embedded() -> Iterator[VllmDouble]:
    with vllm_server("org/base", aliases=True) as double:
        yield double


def make_target(kind: str, double: VllmDouble, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "url": double.url, **fields}


def test_a_better_adapter_becomes_the_live_version(yard: Yard) -> None:
    produced = yard.deploy()
    assert produced.facts["version"] == "acme/bot/v1"
    assert produced.facts["deployed"] is True
    assert produced.facts["previous"] is None
    version = yard.registry.show("acme/bot")
    assert version.sha256 == yard.adapter.sha256
    assert version.facts["gate"]["better"] is True
    assert json.loads((yard.folder / "out1" / "deployment.json").read_text()) == produced.facts


@pytest.mark.parametrize(
    ("compared", "warned"),
    [
        ({"baseline": "base"}, True),
        ({"baseline": "base", "live": "acme/bot/v1"}, False),
        ({"baseline": "live adapter acme/bot/v1"}, False),
        ({"baseline": "base (the live adapter acme/bot/v1 belongs to another base)"}, True),
        ({"baseline": "base", "live": "acme/bot/v0"}, True),
    ],
)
def test_a_replaced_version_that_was_not_compared_is_named(yard: Yard, compared: dict[str, str], warned: bool) -> None:
    """What is better than the base may be worse than what it replaces."""
    notice = "takes the place of acme/bot/v1, with which it was not compared: that needs `baseline: both` at the ev"

    def is_noted(**config: bool) -> bool:
        return any(notice in warning for warning in yard.deploy(**config).facts["warnings"])

    assert not is_noted(), "nothing is replaced"
    yard.adapter = make_adapter(yard.folder / "second")
    yard.report = make_report(yard.folder / "report-2", yard.adapter, **compared)
    assert is_noted() is warned
    yard.adapter, yard.report = make_adapter(yard.folder / "third"), None
    assert not is_noted(unevaluated=True), "its chain says that nothing was compared"


def test_an_adapter_that_was_replaced_never_goes_live_again_by_a_run(yard: Yard, embedded: VllmDouble) -> None:
    target = make_target("embedded", embedded)
    first = yard.adapter
    yard.deploy(target, run_key="one")
    yard.adapter = make_adapter(yard.folder / "second")
    yard.report = make_report(yard.folder / "report-2", yard.adapter)
    yard.deploy(target, run_key="two")
    assert (yard.live(), embedded.alias["acme/bot"]) == (2, "acme/bot/v2")
    yard.adapter, yard.report = first, make_report(yard.folder / "report-3", first)
    for settings in ({}, {"canary": "Are you there?"}):  # the same deployment, and another one of the same adapter
        again = yard.deploy(target, run_key="one" if not settings else "three", **settings)
        assert (again.facts["deployed"], again.facts["version"]) == (False, "acme/bot/v1")
        assert again.facts["kept"] == (
            "acme/bot/v2 stays live: this adapter is acme/bot/v1, which was registered before"
        )
        assert (yard.live(), embedded.alias["acme/bot"]) == (2, "acme/bot/v2")
    assert [adapter_version.version for adapter_version in yard.registry.list("acme", "bot")] == [1, 2]
    yard.registry.rollback("acme", "bot")
    assert yard.deploy(target, run_key="one").facts["deployed"] is True  # it is live
    yard.adapter = reference(yard.folder / "second", Port.ADAPTER)
    yard.report = make_report(yard.folder / "report-4", yard.adapter)
    assert yard.deploy(target, run_key="two").facts["deployed"] is False  # it was rolled back
    assert yard.live() == 1


def test_a_version_whose_deployment_failed_is_deployed_by_the_next_try(yard: Yard, vllm: VllmDouble) -> None:
    yard.deploy(make_target("vllm", vllm))
    yard.adapter = make_adapter(yard.folder / "second")
    yard.report = make_report(yard.folder / "report-2", yard.adapter)
    vllm.mute.add("acme/bot/v2")
    with pytest.raises(TrainyardError, match="E-CANARY"):
        yard.deploy(make_target("vllm", vllm), run_key="two")
    vllm.mute.clear()
    assert yard.deploy(make_target("vllm", vllm), run_key="two").facts["version"] == "acme/bot/v2"
    assert yard.live() == 2


def test_few_rows_go_live_only_when_that_is_allowed(yard: Yard) -> None:
    few = {"few_rows": ["16 rows are not enough to say."], "reasons": ["16 rows are not enough to say."]}
    yard.report = make_report(yard.folder / "few", yard.adapter, better=False, better_on_few=True, **few)
    with pytest.raises(TrainyardError, match=r"E-GATE: There are not enough rows to say .*few_rows: allow"):
        yard.deploy()
    assert yard.registry.list() == []
    assert yard.deploy(few_rows="allow").facts["version"] == "acme/bot/v1"
    yard.report = make_report(yard.folder / "worse", yard.adapter, better=False, better_on_few=False, **few)
    with pytest.raises(TrainyardError, match="E-GATE: The adapter is not better than its baseline"):
        yard.deploy(few_rows="allow")


def test_every_target_answers_and_the_old_version_is_dropped(
    yard: Yard, vllm: VllmDouble, embedded: VllmDouble
) -> None:
    targets = [make_target("embedded", embedded), make_target("vllm", vllm)]
    yard.deploy(*targets)
    second = yard.deploy(*targets, canary="Are you there?")
    assert set(vllm.adapters) == set(embedded.adapters) == {"acme/bot/v2"}
    assert embedded.alias == {"acme/bot": "acme/bot/v2"}
    assert yard.live() == 2
    assert [target["answer"] for target in second.facts["targets"]] == ["acme/bot/v2 heard: Are you there?"] * 2 + [""]
    assert second.facts["previous"] == "acme/bot/v1"
    assert second.facts["warnings"] == [NOT_RUN]


def test_a_second_target_that_fails_restores_the_first(yard: Yard, vllm: VllmDouble, embedded: VllmDouble) -> None:
    targets = [make_target("embedded", embedded), make_target("vllm", vllm)]
    yard.deploy(*targets)
    vllm.mute.add("acme/bot/v2")
    with pytest.raises(
        TrainyardError,
        match=r"E-CANARY: vllm at http://.* answered the canary prompt with nothing\..*"
        r"Everything was undone; acme/bot/v1 stays live\.",
    ):
        yard.deploy(*targets)
    assert set(vllm.adapters) == set(embedded.adapters) == {"acme/bot/v1"}
    assert embedded.alias == {"acme/bot": "acme/bot/v1"}
    assert yard.live() == 1
    assert [adapter_version.version for adapter_version in yard.registry.list()] == [1, 2]
    vllm.mute.clear()
    assert yard.deploy(*targets).facts["version"] == "acme/bot/v3"


def test_a_target_that_fails_at_the_switch_undoes_the_ones_before_it(yard: Yard, embedded: VllmDouble) -> None:
    with vllm_server("org/base", aliases=True, broken={"/v1/aliases": (500, "no room")}) as second:
        with pytest.raises(
            TrainyardError,
            match=r"E-SERVER-REFUSED: .*/v1/aliases with status 500\..*no room\. Everything was undone; nothing",
        ):
            yard.deploy(make_target("embedded", embedded), make_target("embedded", second))
        assert embedded.alias == {}
        assert embedded.adapters == {}
        assert yard.live() is None


def test_a_server_that_lost_the_old_version_is_left_without_an_alias(yard: Yard, embedded: VllmDouble) -> None:
    yard.deploy(make_target("embedded", embedded))
    embedded.adapters.clear()
    embedded.alias.clear()  # it was restarted
    with (
        vllm_server("org/base", mute={"acme/bot/v2"}) as second,
        pytest.raises(TrainyardError, match="Everything was undone; acme/bot/v1 stays live"),
    ):
        yard.deploy(make_target("embedded", embedded), make_target("vllm", second))
    assert (embedded.alias, embedded.adapters, yard.live()) == ({}, {}, 1)


def test_a_restarted_server_gets_its_live_adapters_back(yard: Yard, embedded: VllmDouble) -> None:
    yard.deploy(make_target("embedded", embedded))
    yard.deploy(make_target("embedded", embedded))
    embedded.adapters.clear()
    embedded.alias.clear()  # it was restarted
    assert embedded_server.restore_live(yard.settings, embedded.url) == ["acme/bot/v2 answers again"]
    assert (set(embedded.adapters), embedded.alias) == ({"acme/bot/v2"}, {"acme/bot": "acme/bot/v2"})
    (line,) = embedded_server.restore_live(yard.settings, embedded.url)
    assert line.startswith("acme/bot/v2 is not served: ")
    assert "already been loaded" in line


def test_a_deployment_without_an_evaluation_is_refused_unless_said(yard: Yard) -> None:
    yard.report = None
    with pytest.raises(Refused, match=r"R-UNEVALUATED config\.unevaluated: no evaluation report reached the deployer"):
        yard.deploy()
    assert yard.registry.list() == []
    produced = yard.deploy(unevaluated=True)
    assert produced.facts["deployed"] is True
    assert yard.registry.show("acme/bot").facts["evaluated"] is False


@pytest.mark.parametrize("unevaluated", [False, True])
def test_not_better_is_an_error_with_all_reasons_and_registers_nothing(yard: Yard, unevaluated: bool) -> None:
    yard.report = make_report(yard.folder / "worse", yard.adapter, better=False)
    with pytest.raises(NotDeployed, match=r"E-GATE: The adapter is not better") as caught:
        yard.deploy(unevaluated=unevaluated)
    assert caught.value.reasons == ("heldout_loss/x: improvement -0.1", "forgetting/general: worse")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.reasons, copy.as_dict()) == (caught.value.reasons, caught.value.as_dict())
    assert yard.registry.list() == []


def test_a_no_names_the_tolerance_or_the_share_that_would_allow_it(yard: Yard) -> None:
    line = {"name": "forgetting", "set": "general", "margin": 0.56, "baseline": 5.6, "improvement": {"mean": -0.622}}
    forgot = {"better": False, "reasons": ["forgetting/general: improvement -0.622; worse"], "benchmarks": [line]}
    yard.report = make_report(yard.folder / "forgot", yard.adapter, **forgot)
    with pytest.raises(NotDeployed, match=r"tolerance: 0\.12 at .*`-p publish\.tolerance=0\.12`.* is used again"):
        yard.deploy()
    yard.report = make_report(yard.folder / "primary", yard.adapter, primary="forgetting/general", **forgot)
    with pytest.raises(NotDeployed, match="Hold out more rows, train longer"):
        yard.deploy()
    line |= {"improvement": {"mean": -9.0}}
    yard.report = make_report(yard.folder / "all", yard.adapter, **forgot)
    with pytest.raises(NotDeployed, match=r"by heart\. Train fewer steps, or take a larger base"):
        yard.deploy()
    quotes = {"better": False, "reasons": ["quotes/unseen_wording: 0.1; at least 0.2 is required."]}
    yard.report = make_report(yard.folder / "quotes", yard.adapter, **quotes)
    with pytest.raises(NotDeployed, match=r"train more epochs.*publish\.least_quoted=0"):
        yard.deploy()
    line |= {"margin": 0.0}  # a benchmark that the chain lists: its own margin allows it
    yard.report = make_report(yard.folder / "listed", yard.adapter, **forgot)
    with pytest.raises(NotDeployed, match="Hold out more rows, train longer"):
        yard.deploy()


def test_a_report_about_another_adapter_is_refused(yard: Yard) -> None:
    other = make_adapter(yard.folder / "other")
    yard.report = make_report(yard.folder / "other-report", other)
    with pytest.raises(Refused, match=r"R-EVALUATION needs: the report is about [0-9a-f]{12}, the adapter is"):
        yard.deploy()


def test_a_control_is_never_deployed(yard: Yard) -> None:
    yard.adapter = make_adapter(yard.folder / "control", control="shuffled_answers")
    yard.report = None
    with pytest.raises(Refused, match=r"R-CONTROL needs: the adapter is a control"):
        yard.deploy(unevaluated=True)


def test_a_changed_chat_template_is_refused(yard: Yard) -> None:
    yard.adapter = make_adapter(yard.folder / "changed", chat_template_sha256="0" * 64)
    yard.report = None
    with pytest.raises(Refused, match=r"R-TEMPLATE-MISMATCH needs: the chat template in the adapter's folder"):
        yard.deploy(unevaluated=True)


def test_a_base_folder_that_changed_since_the_training_is_refused(yard: Yard) -> None:
    base = yard.folder / "base"
    base.mkdir()
    (base / "config.json").write_text('{"model_type": "llama"}')
    yard.adapter = make_adapter(yard.folder / "moved", base_path=str(base), base_sha256="0" * 64)
    yard.report = None
    with pytest.raises(Refused, match=r"R-BASE-MISMATCH needs: the files of the base 'org/base' have changed"):
        yard.deploy(unevaluated=True)


def test_all_reasons_of_all_targets_come_at_once_and_nothing_is_touched(yard: Yard, vllm: VllmDouble) -> None:
    config = {"r": 64, "use_dora": True, "modules_to_save": ["lm_head"]}
    yard.adapter = make_adapter(yard.folder / "odd", config)
    yard.report = None
    with pytest.raises(Refused) as refused:
        yard.deploy(
            {"type": "registry"}, make_target("vllm", vllm), {"type": "ollama", "url": "http://x"}, unevaluated=True
        )
    codes = [(reason.code, reason.field.removeprefix("config.targets.")) for reason in refused.value.reasons]
    of_vllm = [("R-TARGET", "1.type"), ("R-TARGET", "1.type"), ("R-TARGET", "1.max_lora_rank")]
    of_ollama = ["R-TARGET", "R-PACKAGE-MISSING", "R-BASE-MISMATCH", "R-TEMPLATE-MISMATCH"]
    assert codes == [*of_vllm, *((code, "2.type") for code in of_ollama)]
    assert {path for path, _ in vllm.requests} == {"/v1/models"}
    assert yard.registry.list() == []


def test_a_server_that_is_not_there_leaves_everything_as_it_was(yard: Yard) -> None:
    with pytest.raises(Unavailable, match=r"E-SERVER-UNREACHABLE: vllm at http://127\.0\.0\.1:9 did not answer /v1/mo"):
        yard.deploy({"type": "vllm", "url": "http://127.0.0.1:9"})
    with pytest.raises(Unavailable, match=r"R-TARGET-DOWN: The target `embedded` has no address\. Do: Call `trainyard"):
        yard.deploy({"type": "embedded"})
    assert yard.registry.list() == []


def test_the_embedded_server_that_is_up_is_found(yard: Yard, embedded: VllmDouble) -> None:
    yard.settings.services.mkdir(parents=True)
    process_here = psutil.Process()
    facts = {"pid": process_here.pid, "create_time": process_here.create_time(), "port": 0, "url": embedded.url}
    facts |= {"model": "org/base", "model_sha256": "", "started": 0.0}
    (yard.settings.services / "embedded.json").write_text(json.dumps(facts))
    yard.deploy({"type": "embedded"})
    assert embedded.alias == {"acme/bot": "acme/bot/v1"}


def test_the_same_run_key_does_it_once(yard: Yard, vllm: VllmDouble) -> None:
    first = yard.deploy(make_target("vllm", vllm), run_key="run-7")
    again = yard.deploy(make_target("vllm", vllm), run_key="run-7")
    assert first.facts["version"] == again.facts["version"] == "acme/bot/v1"
    assert set(vllm.adapters) == {"acme/bot/v1"}
    assert len(yard.registry.list()) == 1


def test_an_old_version_that_cannot_be_dropped_is_a_warning(yard: Yard, vllm: VllmDouble) -> None:
    yard.deploy(make_target("vllm", vllm))
    vllm.broken["/v1/unload_lora_adapter"] = (500, "busy")
    produced = yard.deploy(make_target("vllm", vllm))
    assert yard.live() == 2
    assert produced.facts["warnings"][1:] == [NOT_RUN]
    assert produced.facts["warnings"][0].startswith("The previous version is still loaded in vllm at http://")


def test_what_cannot_be_undone_is_said(yard: Yard, vllm: VllmDouble) -> None:
    vllm.mute.add("acme/bot/v1")
    vllm.broken["/v1/unload_lora_adapter"] = (500, "busy")
    with pytest.raises(TrainyardError, match=r"E-CANARY: .*Could not be undone at vllm at http://"):
        yard.deploy(make_target("vllm", vllm))
    assert yard.live() is None


def test_a_whole_model_goes_to_the_registry_only(yard: Yard, vllm: VllmDouble) -> None:
    yard.adapter = yard.adapter.model_copy(update={"kind": Port.MODEL})
    yard.report = None
    with pytest.raises(Refused, match=r"R-TARGET config\.targets\.0\.type: a vllm server loads adapters while"):
        yard.deploy(make_target("vllm", vllm), unevaluated=True)
    yard.deploy(unevaluated=True)
    assert yard.registry.show("acme/bot").kind == "model"


RANDOM_ADAPTER = """
import sys, torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
torch.manual_seed(1)
lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
get_peft_model(AutoModelForCausalLM.from_pretrained(sys.argv[1]), lora).save_pretrained(sys.argv[2])
"""


@pytest.mark.slow
def test_a_real_server_answers_with_the_new_version_and_keeps_the_old_one_on_failure(
    yard: Yard, tiny_model: Path, tmp_path: Path
) -> None:
    """The embedded server itself, with a real adapter: deploy, fail at another target's canary, deploy again."""
    folder, base = tmp_path / "real", str(tiny_model)
    subprocess.run([sys.executable, "-c", RANDOM_ADAPTER, base, str(folder)], check=True, capture_output=True)
    training = {"base_model": base, "base_path": base, "base_sha256": model_sha256(tiny_model)}
    training["chat_template_sha256"] = str(chat_template_sha256(tiny_model))
    (folder / "training.json").write_text(json.dumps(training))
    yard.adapter, yard.report = reference(folder, Port.ADAPTER), None
    embedded_server.start(yard.settings, base, threads=1)
    try:
        first = yard.deploy({"type": "embedded"}, unevaluated=True)
        assert first.facts["targets"][0]["answer"]
        with (
            vllm_server(base, mute={"acme/bot/v2"}) as second,
            pytest.raises(TrainyardError, match=r"E-CANARY.*Everything was undone; acme/bot/v1 stays live"),
        ):
            yard.deploy({"type": "embedded"}, make_target("vllm", second), unevaluated=True)
        url = embedded_server.find_running(yard.settings)
        cards = {card["id"]: card for card in httpx.get(f"{url}/v1/models").json()["data"]}
        assert cards["acme/bot"]["alias_of"] == "acme/bot/v1"
        assert "acme/bot/v2" not in cards
        third = yard.deploy({"type": "embedded"}, unevaluated=True)
        assert third.facts["version"] == "acme/bot/v3"
        assert third.facts["warnings"] == []
    finally:
        embedded_server.stop(yard.settings)
