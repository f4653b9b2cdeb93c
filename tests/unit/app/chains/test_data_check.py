"""What `check` accepts of local data, a run does not refuse, and the other way round: the same functions decide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.small_jobs import write_base_without
from trainyard.app.context import Context
from trainyard.app.plan.check import check
from trainyard.app.plan.parse import parse_request
from trainyard.app.plan.plan import plan_chain
from trainyard.app.plan.refusals import check_chain, list_refusals, refuse_or_wait
from trainyard.app.plan.resolve import resolve_chain
from trainyard.backends.job import prepare_job
from trainyard.backends.rows import read_rows
from trainyard.data.renderers.tokenizer import choose_for_tokenizer
from trainyard.data.sources import read_source
from trainyard.errors import Refused, TrainyardError
from trainyard.operations.chains import CheckInput
from trainyard.settings import Settings
from trainyard.spec.axes.data import DATA_PORTS
from trainyard.spec.nodes import DataSourceConfig
from trainyard.spec.training import TrainerConfig
from trainyard.train.losses.table import STAGES
from trainyard.train.rows.prompts import require_any_prompt
from trainyard.train.rows.tokens import require_accepted, require_targets

CHAT = [{"role": "user", "content": "What is a valve?"}, {"role": "assistant", "content": "It opens and closes."}]
LONG = "the valve opens and closes " * 200


def make_lines(*rows: Any, count: int = 12) -> str:
    """The rows, repeated with numbers."""
    text = "\n".join(json.dumps(row) for row in rows)
    return "\n".join(text.replace("valve", f"valve {number}") for number in range(count)) + "\n"


SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "chats": (make_lines({"messages": CHAT}), {}),
    "chats named preference": (make_lines({"messages": CHAT}), {"format": "preference"}),
    "unanswered": (make_lines({"messages": CHAT[:1]}), {}),
    "pairs": (make_lines({"prompt": "A valve?", "chosen": "Yes, it is.", "rejected": "No"}), {}),
    "equal pairs": (make_lines({"prompt": "A valve?", "chosen": "Yes", "rejected": "Yes"}), {}),
    "completions": (make_lines({"prompt": "A valve?", "completion": "It opens."}), {}),
    "prompts": (make_lines({"prompt": "Is a valve round?"}), {}),
    "prompts with answers": (make_lines({"prompt": "Is a valve round?", "answer": "yes"}), {}),
    "labelled": (
        make_lines(
            {"prompt": "A valve?", "completion": "Yes", "label": True},
            {"prompt": "A valve 2?", "completion": "No", "label": False},
        ),
        {},
    ),
    "labelled alike": (make_lines({"prompt": "A valve?", "completion": "Yes", "label": True}), {}),
    "texts": (make_lines({"text": "A valve opens and closes."}), {}),
    "too long": (make_lines({"prompt": LONG, "completion": "lost"}), {}),
    "a fifth broken": ("{broken\n" * 3 + make_lines({"prompt": "A valve?", "completion": "It opens."}), {}),
    "broken and allowed": (
        "{broken\n" * 3 + make_lines({"prompt": "A valve?", "completion": "It opens."}),
        {"max_bad_fraction": 0.5},
    ),
    "mapped": (
        make_lines({"frage": "A valve?", "antwort": "It opens."}),
        {"columns": {"prompt": "frage", "completion": "antwort"}},
    ),
    "unknown keys": (make_lines({"frage": "A valve?", "antwort": "It opens."}), {}),
    "empty": ("", {}),
}
GRPO = {"type": "grpo", "rewards": [{"type": "exact_match"}]}
STAGE_VALUES: dict[str, Any] = {"sft": "sft", "dpo": "dpo", "kto": "kto", "grpo": GRPO, "cpt": "cpt"}


@pytest.fixture
def here(tmp_path: Path, tiny_model: Path) -> Settings:
    (tmp_path / "work").mkdir()
    return Settings(
        home=tmp_path / "home",
        working_folder=tmp_path / "work",
        default_base_model=str(tiny_model),
        plan_read_s=120,
    )


def make_chain(source: dict[str, Any], stage: Any) -> dict[str, Any]:
    nodes = [{"type": "data_source", "config": source}, {"type": "trainer", "config": {"stage": stage}}]
    return {"name": "checked", "nodes": nodes}


def verdict_of_check(chain: dict[str, Any], here: Settings) -> list[str]:
    """The codes of the reasons; empty for a chain that would run."""
    try:
        resolved = resolve_chain(parse_request(chain).spec, here)
        return [reason.code for reason in list_refusals(resolved, here)]
    except TrainyardError as error:
        return [error.code]


def begin_run(chain: dict[str, Any], here: Settings, folder: Path) -> str:
    """Read and encode as the nodes of a run do; the code of what it raises."""
    try:
        resolved = resolve_chain(parse_request(chain).spec, here)
        source, trainer = (node for node in resolved.nodes)
        assert isinstance(source.config, DataSourceConfig)
        assert isinstance(trainer.config, TrainerConfig)
        source_result = read_source(source.config, folder, settings=here, report=lambda fraction, text: None)
        linked = [source.port for port, sources in trainer.inputs.items() if port in DATA_PORTS for source in sources]
        port = next((port for port in linked if port in source_result.outputs), None)
        if port is None:
            return "E-NODE"
        config = trainer.config
        data = {port: str(folder / source_result.outputs[port].folder)}
        job = prepare_job(
            config, str(here.default_base_model), here, data=data, data_sha256={port: "x"}, node="trainer"
        )
        tokenizer = AutoTokenizer.from_pretrained(here.default_base_model)
        tokenizer.chat_template = choose_for_tokenizer(tokenizer, config.engine.template).text
        _, ledger = STAGES[config.stage.type].chosen(config).encode(read_rows(job), tokenizer, config)
        require_accepted(ledger, config.refusal_limit)
        (require_any_prompt if config.stage.facts.draws_groups else require_targets)(ledger)
    except TrainyardError as error:
        return error.code
    return ""


@pytest.mark.parametrize("stage", STAGE_VALUES)
@pytest.mark.parametrize("name", SETS)
def test_check_and_run_agree(name: str, stage: str, here: Settings, tmp_path: Path) -> None:
    text, config = SETS[name]
    (here.working_folder / "rows.jsonl").write_text(text)
    chain = make_chain({"path": "rows.jsonl", **config}, STAGE_VALUES[stage])
    run = begin_run(chain, here, tmp_path / "run")
    checked = verdict_of_check(chain, here)
    assert bool(checked) == bool(run), (checked, run)


@pytest.mark.parametrize(
    ("rows", "code"), [(make_lines({"prompt": "Why?", "completion": "So."}), "E-DATA-EMPTY"), (SETS["chats"][0], "")]
)
def test_check_and_run_agree_on_a_share_of_the_rows(rows: str, code: str, here: Settings, tmp_path: Path) -> None:
    (here.working_folder / "rows.jsonl").write_text(rows)
    chain = make_chain({"path": "rows.jsonl"}, "sft")
    chain["nodes"][1]["config"]["eval"] = {"share": 0.5}
    assert verdict_of_check(chain, here) == ([code] if code else [])
    assert begin_run(chain, here, tmp_path / "run") == code


@pytest.mark.parametrize(("steps", "code"), [({}, "E-DATA-EMPTY"), ({"steps": ["It is a valve."]}, "")])
def test_check_and_run_agree_on_steps_of_reasoning(
    steps: dict[str, Any], code: str, here: Settings, tmp_path: Path
) -> None:
    (here.working_folder / "rows.jsonl").write_text(make_lines({"question": "A valve?", "answer": "Yes.", **steps}))
    chain = make_chain({"path": "rows.jsonl"}, {"type": "sft", "latent": {"type": "coconut"}})
    assert verdict_of_check(chain, here) == ([code] if code else [])
    assert begin_run(chain, here, tmp_path / "run") == code


def test_check_refuses_fewer_prompts_than_a_rollout_answers(here: Settings) -> None:
    chain = make_chain({"path": "rows.jsonl"}, {**GRPO, "num_generations": 2})
    chain["nodes"][1]["config"]["hyperparameters"] = {"batch_size": 26}
    for count, codes in ((12, ["E-BATCH"]), (13, [])):
        text = make_lines({"prompt": "Is a valve round?", "answer": "yes"}, count=count)
        (here.working_folder / "rows.jsonl").write_text(text)
        assert verdict_of_check(chain, here) == codes


def test_labels_that_come_late_are_not_missing(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in the order of their labels are read only in part, however short the file is."""
    monkeypatch.setattr("trainyard.app.plan.row_fit.MOST_ROWS", 10)
    rows = [
        make_lines({"prompt": "A valve?", "completion": "Yes", "label": label}, count=10) for label in (True, False)
    ]
    (here.working_folder / "rows.jsonl").write_text("".join(rows))
    assert verdict_of_check(make_chain({"path": "rows.jsonl"}, "kto"), here) == []


def test_check_refuses_a_control_whose_answers_are_alike(here: Settings) -> None:
    nodes: list[dict[str, Any]] = [
        {"type": "data_source", "id": "rows", "config": {"path": "rows.jsonl", "heldout": {"path": "unseen.jsonl"}}},
        {"type": "trainer", "id": "tuned", "needs": ["rows"]},
        {"type": "trainer", "id": "control", "needs": ["rows"], "config": {"control": "shuffled_answers"}},
        {"type": "evaluator", "needs": ["tuned", "control"]},
    ]
    (here.working_folder / "unseen.jsonl").write_text(SETS["completions"][0])
    for answer, refused in (("Yes", True), ("A valve", False)):
        (here.working_folder / "rows.jsonl").write_text(make_lines({"prompt": "A valve?", "completion": answer}))
        assert ("E-DATA-EMPTY" in verdict_of_check({"name": "checked", "nodes": nodes}, here)) is refused


def test_check_refuses_running_text_for_a_base_without_an_end_of_text(here: Settings, tmp_path: Path) -> None:
    base = write_base_without(Path(here.default_base_model), tmp_path / "base", "eos")
    here = here.model_copy(update={"default_base_model": str(base)})
    (here.working_folder / "rows.jsonl").write_text(SETS["texts"][0])
    chain = make_chain({"path": "rows.jsonl"}, "cpt")
    assert verdict_of_check(chain, here) == ["E-TOKENIZER"]
    assert begin_run(chain, here, tmp_path / "run") == "E-TOKENIZER"


def test_rows_of_another_stage_are_refused(here: Settings) -> None:
    (here.working_folder / "rows.jsonl").write_text(SETS["chats"][0])
    resolved = resolve_chain(parse_request(make_chain({"path": "rows.jsonl"}, "dpo")).spec, here)
    (reason,) = list_refusals(resolved, here)
    assert (reason.code, reason.node) == ("R-PORT", "trainer")
    assert "learns from preference, and what was read is sft rows" in reason.because


def test_a_plan_counts_the_rows_that_fit(here: Settings) -> None:
    rows = SETS["completions"][0] + SETS["too long"][0]
    (here.working_folder / "rows.jsonl").write_text(rows)
    plan = plan_chain(parse_request(make_chain({"path": "rows.jsonl"}, "sft")).spec, here)
    trainer = plan.nodes[-1].estimate
    assert (trainer.rows, trainer.steps) == (12, 9)  # 12 of 24 rows, 4 a step, 3 epochs
    assert trainer.tokens is not None
    assert any("12 of 24 rows are dropped: truncated" in line for line in trainer.basis)


def test_reading_stops_at_its_limit(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.app.plan.samples.FIRST_ROWS", 100)
    monkeypatch.setattr("trainyard.app.plan.samples.MOST_ROWS", 100)
    (here.working_folder / "rows.jsonl").write_text(
        make_lines({"prompt": "A valve?", "completion": "It opens."}, count=500)
    )
    plan = plan_chain(parse_request(make_chain({"path": "rows.jsonl"}, "sft")).spec, here)
    source, trainer = (node.estimate for node in plan.nodes)
    assert "first 100 rows read, extrapolated to 500" in source.basis[0]
    assert (source.rows, trainer.rows) == (500, 500)


def test_an_unknown_column_is_refused_with_the_columns_there(here: Settings) -> None:
    (here.working_folder / "rows.jsonl").write_text(SETS["mapped"][0])
    source = {"path": "rows.jsonl", "columns": {"prompt": "fragen", "completion": "antwort"}}
    resolved = resolve_chain(parse_request(make_chain(source, "sft")).spec, here)
    (reason,) = list_refusals(resolved, here)
    assert reason.code == "E-DATA-FORMAT"
    assert "frage, antwort" in reason.because
    assert "Did you mean 'frage'" in reason.instead


def rule_chain(count: int, **deployer: Any) -> dict[str, Any]:
    nodes = [
        {"type": "data_source", "config": {"path": "docs"}},
        {"type": "ai_generator", "config": {"count": count}},
        {"type": "validator"},
        {"type": "trainer", "config": {"base_model": "starter"}},
        {"type": "evaluator"},
        {"type": "deployer", "config": deployer},
    ]
    return {"name": "rules", "nodes": nodes}


@pytest.mark.parametrize(
    ("deployer", "codes"), [({}, {"E-FEW-ROWS", "E-STARTER"}), ({"few_rows": "allow"}, {"E-STARTER"})]
)
def test_too_few_rows_need_to_be_allowed(deployer: dict[str, Any], codes: set[str], here: Settings) -> None:
    folder = here.working_folder / "docs"
    folder.mkdir()
    for number in range(6):
        text = f"# Kettle {number}\n\nThe kettle {number} is a vessel that boils {number + 2} litres of water.\n"
        (folder / f"{number}.md").write_text(text)
    resolved = resolve_chain(parse_request(rule_chain(3000, **deployer)).spec, here)
    examined = check_chain(resolved, here)
    assert examined.reasons == []
    assert {reason.code for reason in examined.shortages} == codes
    assert any("few rows" in note for note in examined.nodes["ai-generator"].notes)
    with pytest.raises(Refused, match=min(codes)):
        refuse_or_wait(resolved, here, is_job=False)
    assert refuse_or_wait(resolved, here, is_job=False, allows=bool) == ""


def test_the_starter_is_asked_about_on_pairs_by_rule_and_on_many_tokens(here: Settings, tiny_model: Path) -> None:
    folder = here.working_folder / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# Kettle\n\nThe kettle is a vessel that boils two litres of water.\n")
    chain = rule_chain(3)
    other = [*chain["nodes"][:3], {"type": "trainer", "config": {"base_model": str(tiny_model)}}]
    starter = {"type": "trainer", "config": {"base_model": "starter"}}
    rows = [{"type": "data_source", "config": {"path": "rows.jsonl"}}, starter]
    many = [{"type": "data_source", "config": {"path": "many.jsonl"}}, starter]
    (here.working_folder / "rows.jsonl").write_text(make_lines({"messages": CHAT}, count=40))
    (here.working_folder / "many.jsonl").write_text(make_lines({"messages": CHAT}, count=4000))
    asked = [
        [reason.code for reason in check_chain(resolve_chain(parse_request(body).spec, here), here).shortages]
        for body in (chain, *({**chain, "nodes": nodes} for nodes in (other, rows, many)))
    ]
    assert ["E-STARTER" in codes for codes in asked] == [True, False, False, True]


def test_check_says_what_it_had_no_time_to_read(here: Settings) -> None:
    (here.working_folder / "rows.jsonl").write_text(make_lines({"messages": CHAT}, count=40_000))
    (here.working_folder / "chain.yaml").write_text(
        "nodes: [{type: data_source, config: {path: rows.jsonl}}, {type: trainer}]"
    )
    hurried = here.model_copy(update={"plan_read_s": 0.0001})  # over before the trainer is looked at
    (file,) = check(CheckInput(files=(here.working_folder / "chain.yaml",)), Context(hurried)).files
    assert file.ok
    assert any("0.0001 s" in note and note.endswith("a run may still refuse what follows") for note in file.notes)


PAIR = {"prompt": "A valve?", "chosen": "It opens slowly.", "rejected": "No."}
DPO = {"type": "trainer", "config": {"stage": "dpo"}}


@pytest.mark.parametrize(
    ("stage", "later", "codes"),
    [({}, [], ["R-PORT"]), ({"stage": "sft"}, [], []), ({"stage": "dpo"}, [], []), ({}, [DPO], [])],
)
def test_pairs_without_a_stage_are_not_trained_by_their_chosen_side_alone(
    stage: dict[str, Any], later: list[dict[str, Any]], codes: list[str], here: Settings
) -> None:
    (here.working_folder / "pairs.jsonl").write_text(make_lines(PAIR))
    nodes = [{"type": "data_source", "config": {"path": "pairs.jsonl"}}, {"type": "trainer", "config": stage}, *later]
    chain = resolve_chain(parse_request({"name": "checked", "nodes": nodes}).spec, here)
    reasons = list_refusals(chain, here)
    assert [reason.code for reason in reasons] == codes
    assert all("stage=dpo" in reason.instead and reason.field == "config.stage" for reason in reasons)


def test_a_data_file_is_no_chain(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    (here.working_folder / "rows.jsonl").write_text(make_lines(PAIR))
    monkeypatch.chdir(here.working_folder)
    with pytest.raises(TrainyardError, match=r"data file.*jobs create -p dataset\.path=rows\.jsonl"):
        parse_request("rows.jsonl")
