"""One answer for check, plan, run and jobs: what stands in the way of a chain, before anything starts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.app.chains.run import run
from trainyard.app.context import Context
from trainyard.app.jobs.jobs import create_job
from trainyard.app.plan import machine
from trainyard.app.plan.check import FileCheck, check
from trainyard.app.plan.locate import locate_request
from trainyard.app.plan.machine import read_machine_facts
from trainyard.app.plan.parse import parse_request
from trainyard.app.plan.plan import plan
from trainyard.app.plan.refusals import list_refusals
from trainyard.app.plan.resolve import resolve_chain
from trainyard.compute.gpus import list_devices
from trainyard.errors import Refused, Unavailable
from trainyard.operations.chains import CheckInput, PlanInput, RunInput
from trainyard.operations.jobs import CreateInput
from trainyard.settings import Settings, load_settings
from trainyard.settings import settings as current_settings
from trainyard.spec.axes.devices import Device
from trainyard.spec.load.files import load_chain
from trainyard.stores.models import chat_template_sha256, resolve_model
from trainyard.testing.vllm_server import VllmDouble, vllm_server

Node = dict[str, Any]
ROWS = "rows.jsonl"
CHAT = (
    '{"messages": [{"role": "user", "content": "What is a kettle?"}, {"role": "assistant", "content": "A vessel."}]}\n'
)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "rows.jsonl").write_text(CHAT * 8)
    (folder / "pairs.jsonl").write_text('{"prompt": "What is a kettle?", "chosen": "A vessel.", "rejected": "No."}\n')
    return folder


@pytest.fixture
def here(work: Path, tiny_model: Path) -> Settings:
    return load_settings(working_folder=work, default_base_model=str(tiny_model))


@pytest.fixture
def context(here: Settings) -> Context:
    return Context(here, say=lambda _text: None)


def trainer(**config: Any) -> Node:
    return {"type": "trainer", "config": config}


def source(path: str = "rows.jsonl", **config: Any) -> Node:
    return {"type": "data_source", "config": {"path": path, "format": "openai", **config}}


def write_chain(folder: Path, *nodes: Node) -> Path:
    path = folder / "chain.yaml"
    path.write_text(yaml.safe_dump({"nodes": list(nodes)}), encoding="utf-8")
    return path


def check_file(context: Context, path: Path) -> FileCheck:
    (file,) = check(CheckInput(files=(path,)), context).files
    return file


def list_reasons(context: Context, path: Path) -> list[str]:
    """The reasons that check, plan and run give for a file, which are the same."""
    reason_lines = [reason["line"] for reason in check_file(context, path).reasons]
    planned = plan(PlanInput(target=str(path)), context)
    assert [refusal["line"] for refusal in planned.refusals] == reason_lines
    assert planned.exit_code == (Refused.exit_code if reason_lines else 0)
    with pytest.raises(Refused if reason_lines else Unavailable) as error:
        run(RunInput(target=str(path)), context)  # a server is looked for only when nothing is in the way
    if isinstance(error.value, Refused):
        assert [reason.line() for reason in error.value.reasons] == reason_lines
    else:
        assert error.value.code == "E-NO-SERVER"
    return reason_lines


def codes(context: Context, path: Path) -> list[str]:
    return [line.split()[0] for line in list_reasons(context, path)]


# Files and models


def test_check_plan_and_run_refuse_a_missing_file_and_a_missing_model_with_the_same_lines(
    context: Context, work: Path
) -> None:
    nodes = source("gone.jsonl"), {"type": "validator"}, trainer(base_model="./no-model")
    reason_lines = list_reasons(context, write_chain(work, *nodes))
    assert [line.split(": ")[0] for line in reason_lines] == [
        "E-DATA-NOT-FOUND data-source.config.path", "E-MODEL-NOT-FOUND trainer.config.base_model",
    ]  # fmt: skip
    assert f"It was looked for in {work}" in reason_lines[0]
    assert "in a form, over REST and in `prefect deployment run`" in reason_lines[0]
    assert f"a relative path starts at {work}" in reason_lines[1]


def test_a_chain_whose_files_are_here_is_accepted(context: Context, work: Path) -> None:
    assert list_reasons(context, write_chain(work, source(), trainer())) == []


def test_a_job_with_a_missing_file_is_refused_before_a_server_is_looked_for(context: Context, work: Path) -> None:
    create_input = CreateInput(parameters={"dataset": {"path": "gone.jsonl"}})
    with pytest.raises(Refused, match=r"E-DATA-NOT-FOUND data-source\.config\.path: There is no file or folder"):
        create_job(create_input, context)
    with pytest.raises(Unavailable, match="E-NO-SERVER"):
        create_job(CreateInput(parameters={"dataset": {"path": "rows.jsonl"}}), context)


@pytest.mark.parametrize(
    ("field", "nodes"),
    [
        ("config.sets.sft.path", [{"type": "data_source", "config": {"sets": {"sft": {"path": "gone"}}}}]),
        ("config.repository", [{"type": "data_source", "config": {"repository": "gone"}}]),
        ("config.evaluation_sets.1", [source(), {"type": "validator", "config": {"evaluation_sets": [ROWS, "g"]}}]),
        ("config.launch.script", [source(), trainer(backend="script", launch={"script": "gone"})]),
    ],
)  # fmt: skip
def test_each_place_that_names_a_file_is_looked_at(
    here: Settings, context: Context, work: Path, field: str, nodes: list[Node]
) -> None:
    context = Context(here.model_copy(update={"allow_scripts": True}), say=context.say)
    (reason,) = check_file(context, write_chain(work, *nodes)).reasons
    assert reason["field"] == field


def test_a_model_of_the_hub_that_is_not_here_is_refused_while_the_hub_is_not_asked(
    context: Context, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_chain(work, source(), trainer(base_model="org/not-here"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (line,) = list_reasons(context, path)
    assert line.startswith("E-MODEL-NOT-FOUND trainer.config.base_model: There is no model 'org/not-here'")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert list_reasons(context, path) == []


def test_the_line_that_a_refused_path_prints_allows_it(
    tmp_path: Path, home: Path, work: Path, tiny_model: Path
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text(CHAT * 8)
    home.mkdir()
    for name in ("first", "second"):
        root_settings = load_settings(working_folder=work, default_base_model=str(tiny_model))
        path = write_chain(work, source(str(tmp_path / name / "rows.jsonl")), trainer())
        (reason,) = check_file(Context(root_settings, say=print), path).reasons
        assert reason["code"] == "R-PATH-ROOT"
        line, file = re.findall(r"`(data_roots = .*)` into (\S+)\.$", reason["instead"])[0]
        assert file == str(home / "trainyard.toml")
        Path(file).write_text(f"{line}\n")
        current_settings.cache_clear()
        root_settings = load_settings(working_folder=work, default_base_model=str(tiny_model))
        assert check_file(Context(root_settings, say=print), path).reasons == ()
    assert root_settings.data_roots == (tmp_path / "first", tmp_path / "second")


# Models, named relative to the caller


def test_a_relative_model_reaches_the_worker_with_its_whole_path(here: Settings, work: Path, tiny_model: Path) -> None:
    shutil.copytree(tiny_model, work / "models" / "mine")
    whole = str(work / "models" / "mine")
    template = locate_request(parse_request("code-tuning", {"base_model": "models/mine", "count": 3}), here)
    assert template.parameters == {"base_model": whole, "count": 3}
    job = locate_request(
        parse_request("training-job", {"dataset": {"path": "rows.jsonl"}, "base_model": "models/mine"}), here
    )
    assert job.parameters["job"] == {"dataset": {"path": "rows.jsonl"}, "base_model": whole}
    deployer = {"type": "deployer", "config": {"unevaluated": True, "targets": [{"base_model": "models/mine"}]}}
    nodes = source(), {"type": "validator", "config": {"tokenizer": "models/mine"}}, trainer(base_model="models/mine")
    request = locate_request(parse_request(str(write_chain(work, *nodes, deployer))), here)
    configs = [node["config"] for node in request.parameters["spec"]["nodes"]]
    assert [configs[1]["tokenizer"], configs[2]["base_model"], configs[3]["targets"][0]["base_model"]] == [whole] * 3
    assert load_chain(yaml.safe_dump(request.parameters["spec"])) == request.spec


def test_a_relative_model_in_a_form_starts_at_the_folder_of_its_deployment(
    here: Settings, work: Path, tiny_model: Path
) -> None:
    shutil.copytree(tiny_model, work / "mine")
    request = parse_request("training-job", {"dataset": {"path": "rows.jsonl"}, "base_model": "mine"})
    chain = resolve_chain(request.spec, here)
    assert chain.node("trainer").config.base_model == str(work / "mine")
    assert list_refusals(chain, here) == []
    elsewhere = here.model_copy(update={"working_folder": work.parent})
    reasons = list_refusals(resolve_chain(request.spec, elsewhere), elsewhere)
    assert [reason.code for reason in reasons] == ["E-DATA-NOT-FOUND", "E-MODEL-NOT-FOUND"]
    assert all(str(work.parent) in reason.because for reason in reasons)


@pytest.mark.parametrize("name", ["starter", "org/model", "/absolute/folder", "gone"])
def test_any_other_name_of_a_model_stays_as_it_is(here: Settings, name: str) -> None:
    request = parse_request("code-tuning", {"base_model": name})
    assert locate_request(request, here).parameters == {"base_model": name}


def test_a_job_in_the_words_of_another_tool_is_sent_in_ours() -> None:
    body = {"dataset": {"path": "rows.jsonl"}, "method": "dpo", "hyperparams": {"epochs": 1}, "device": "cuda:0"}
    assert parse_request("training-job", body).parameters["job"] == {
        "dataset": {"path": "rows.jsonl"}, "stage": {"type": "dpo"}, "method": {"type": "lora"},
        "hyperparameters": {"epochs": 1.0}, "device": "cuda",
    }  # fmt: skip


# Targets


@pytest.fixture
def embedded(tiny_model: Path, here: Settings) -> Iterator[VllmDouble]:
    """A server that serves the default base with its own chat template."""
    card = {
        "sha256": resolve_model(str(tiny_model), here).sha256,
        "chat_template_sha256": chat_template_sha256(tiny_model),
    }
    with vllm_server(base="starter", root=str(tiny_model), aliases=True, card=card) as server:
        yield server


def write_deployed(work: Path, target: dict[str, Any], *trainers: Node) -> Path:
    rows = {
        "type": "data_source",
        "config": {"sets": {"sft": {"path": "rows.jsonl"}, "preference": {"path": "pairs.jsonl"}}},
    }
    deployer = {"type": "deployer", "config": {"targets": [target], "unevaluated": True}}
    return write_chain(work, rows, *(trainers or [trainer()]), deployer)


def test_an_embedded_server_with_the_same_base_is_accepted(context: Context, work: Path, embedded: VllmDouble) -> None:
    assert list_reasons(context, write_deployed(work, {"type": "embedded", "url": embedded.url})) == []


def test_another_base_than_the_server_s_is_refused_before_training(
    context: Context, work: Path, home: Path, embedded: VllmDouble
) -> None:
    embedded.card["sha256"] = "0" * 64
    (line,) = list_reasons(context, write_deployed(work, {"type": "embedded", "url": embedded.url}))
    base = context.settings.default_base_model
    assert line.startswith("R-BASE-MISMATCH deployer.config.targets.0.base_model: embedded at http://127.0.0.1:")
    assert f'write `serve_models = ["{base}"]` into {home / "trainyard.toml"}' in line
    assert "`trainyard down` and `trainyard up`; or train on 'starter'; or use target registry." in line


def test_another_base_than_vllm_s_is_refused_before_training(context: Context, work: Path) -> None:
    with vllm_server(base="org/other", max_lora_rank=32) as server:
        target = {"type": "vllm", "url": server.url, "max_lora_rank": 32}
        (line,) = list_reasons(context, write_deployed(work, target))
        assert line.startswith("R-BASE-MISMATCH")
        assert "start a server with" in line
        named = {**target, "base_model": context.settings.default_base_model}
        assert list_reasons(context, write_deployed(work, named)) == []


def test_another_chat_template_than_the_server_s_is_refused_before_training(
    context: Context, work: Path, embedded: VllmDouble
) -> None:
    target = {"type": "embedded", "url": embedded.url}
    assert codes(context, write_deployed(work, target, trainer(engine={"template": "qwen3"}))) == [
        "R-TEMPLATE-MISMATCH"
    ]


def test_the_rank_of_stacked_adapters_is_that_of_both(context: Context, work: Path, tiny_model: Path) -> None:
    with vllm_server(base=str(tiny_model), max_lora_rank=16) as server:
        stacked = (
            trainer(method={"type": "lora", "rank": 12}),
            trainer(stage="dpo", adapter="stack", method={"type": "lora", "rank": 8}),
        )
        (line,) = list_reasons(context, write_deployed(work, {"type": "vllm", "url": server.url}, *stacked))
        assert line.startswith("R-TARGET deployer.config.targets.0.max_lora_rank: the adapter has rank 20")
        alone = trainer(method={"type": "lora", "rank": 12})
        assert list_reasons(context, write_deployed(work, {"type": "vllm", "url": server.url}, alone)) == []


@pytest.mark.parametrize(("kind", "code"), [("llama_server", "R-PACKAGE-MISSING"), ("mlx", "R-PACKAGE-MISSING")])
def test_a_target_without_its_program_is_refused_before_training(
    context: Context, work: Path, kind: str, code: str
) -> None:
    assert code in codes(context, write_deployed(work, {"type": kind}))


def test_a_server_that_does_not_answer_yet_is_asked_by_the_deployer(context: Context, work: Path) -> None:
    target = {"type": "vllm", "url": "http://127.0.0.1:1", "max_lora_rank": 32}
    assert list_reasons(context, write_deployed(work, target)) == []


def test_an_adapter_on_a_model_of_the_chain_is_for_no_running_server(context: Context, work: Path) -> None:
    trainers = trainer(method="full"), trainer(stage="dpo")
    path = write_deployed(work, {"type": "embedded", "url": "http://127.0.0.1:1"}, *trainers)
    assert [reason["row"] for reason in check_file(context, path).reasons] == ["base-made"]


# Places elsewhere, and devices


def test_a_git_address_and_a_bucket_without_its_client_are_refused(
    context: Context, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in ("https://host.example/code.git", "git@host.example:code.git"):
        nodes = {"type": "data_source", "config": {"repository": address}}, {"type": "ai_generator"}, trainer()
        assert "repository-url" in [reason["row"] for reason in check_file(context, write_chain(work, *nodes)).reasons]
    path = write_chain(work, source(), trainer(engine={"mirror": "gs://bucket/checkpoints"}))
    monkeypatch.setattr(machine, "has_module", lambda name: not name.startswith("google"))
    unlisted, line = list_reasons(context, path)
    assert unlisted.startswith("R-MIRROR trainer.config.engine.mirror: ")
    assert line == (
        "R-PACKAGE-MISSING trainer.config.engine.mirror: gs://bucket/checkpoints needs google.cloud.storage, which is "
        "not installed here. Instead: Run `pip install 'trainyard[gcs]'`."
    )


def test_a_tracker_that_is_not_installed_is_refused(
    context: Context, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_chain(work, source(), trainer(engine={"trackers": ["tensorboard", "mlflow"]}))
    monkeypatch.setattr(machine, "has_module", lambda name: name != "mlflow")
    assert list_reasons(context, path) == [
        "R-PACKAGE-MISSING trainer.config.engine.trackers: mlflow needs mlflow, which is not installed here. "
        "Instead: Run `pip install 'mlflow'`."
    ]


def test_every_part_asks_the_same_function_for_the_devices(here: Settings, work: Path) -> None:
    chain = resolve_chain(parse_request(str(write_chain(work, source(), trainer(device="wgpu")))).spec, here)
    assert read_machine_facts(chain, here).devices == frozenset(list_devices())
    assert chain.node("trainer").config.device is Device.AUTO
