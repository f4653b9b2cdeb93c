"""Column settings of other tools: the imported chain reads the rows under those names, or the import refuses them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.app.chains.other_tools import import_configs
from trainyard.app.context import Context
from trainyard.app.data.preview import preview
from trainyard.errors import InvalidInput, Refused
from trainyard.operations.chains import ImportInput
from trainyard.operations.data import PreviewInput
from trainyard.settings import settings

OWN = Path(__file__).parents[3] / "resources" / "imports"
TURNS = [{"role": "user", "content": "What is a valve?"}, {"role": "assistant", "content": "It opens."}]
SPOKEN = [{"from": "human", "value": "What is a valve?"}, {"from": "gpt", "value": "It opens."}]
OTHERS = {"instruction": "Wrong one.", "output": "Wrong two.", "prompt": "Wrong three.", "history": "Wrong four."}
"""Columns that the config does not name, under names that are read here."""
QUESTION, ANSWER = "What is a valve?", "It opens."
LIST = "dataset_info.json"


@dataclass(frozen=True)
class ColumnCase:
    tool: str
    config: dict[str, Any]
    row: dict[str, Any]
    columns: dict[str, str]
    """Those of the imported data source."""
    texts: tuple[str, ...] = (QUESTION, ANSWER)
    """Parts of the first rendered row, or of both sides of the first pair."""
    settings: dict[str, Any] = field(default_factory=dict)
    listed: dict[str, Any] = field(default_factory=dict)
    """The entry in `dataset_info.json`."""


def axolotl(**entry: Any) -> dict[str, Any]:
    return {"datasets": [{"path": "rows.jsonl", "type": "chat_template", **entry}]}


ALPACA_COLUMNS = {"prompt": "ask", "query": "about", "response": "reply"}
CASES = {
    "axolotl messages": ColumnCase(
        "axolotl", axolotl(field_messages="dialog"), {"dialog": TURNS, "system": "Be kind.", **OTHERS},
        {"messages": "dialog", "system": "system", "tools": "tools"}, ("Be kind.", QUESTION, ANSWER),
    ),
    "axolotl system": ColumnCase(
        "axolotl", axolotl(field_system="rules"), {"messages": TURNS, "rules": "Be kind.", "system": "Be rude."},
        {"messages": "messages", "system": "rules", "tools": "tools"}, ("Be kind.", QUESTION, ANSWER),
    ),
    "axolotl spoken": ColumnCase(
        "axolotl",
        axolotl(field_messages="dialog", message_property_mappings={"role": "from", "content": "value"}),
        {"dialog": SPOKEN}, {"messages": "dialog", "system": "system", "tools": "tools"},
    ),
    "axolotl own prompt": ColumnCase(
        "axolotl", axolotl(type={"field_instruction": "ask", "field_output": "reply", "format": "{instruction}"}),
        {"ask": QUESTION, "reply": ANSWER, **OTHERS},
        {"prompt": "ask", "input": "input", "completion": "reply", "system": "system"},
        settings={"data_source": {"format": "auto"}},
    ),
    "axolotl texts": ColumnCase(
        "axolotl", axolotl(type="completion", field="body"), {"body": QUESTION, "text": "Wrong."}, {"text": "body"},
        (QUESTION,),
    ),
    "axolotl pairs": ColumnCase(
        "axolotl", axolotl(type="chat_template.default", field_chosen="better") | {"rl": "dpo"},
        {"messages": TURNS[:1], "better": TURNS[1], "rejected": {"role": "assistant", "content": "No."}, **OTHERS},
        {"messages": "messages", "chosen": "better", "rejected": "rejected", "system": "system", "tools": "tools"},
        (QUESTION, ANSWER, "No."),
    ),
    "llama-factory alpaca": ColumnCase(
        "llamafactory", {"stage": "sft"}, {"ask": QUESTION, "about": "In a pump.", "reply": ANSWER, **OTHERS},
        {"prompt": "ask", "input": "about", "completion": "reply"}, (f"{QUESTION}\nIn a pump.", ANSWER),
        listed={"columns": ALPACA_COLUMNS},
    ),
    "llama-factory history": ColumnCase(
        "llamafactory", {"stage": "sft"}, {"ask": QUESTION, "reply": ANSWER, "before": [["Hello?", "Good day."]]},
        {"prompt": "ask", "completion": "reply", "history": "before"}, ("Hello?", "Good day.", QUESTION, ANSWER),
        listed={"columns": {"prompt": "ask", "response": "reply", "history": "before"}},
    ),
    "llama-factory sharegpt": ColumnCase(
        "llamafactory", {"stage": "sft"}, {"dialog": SPOKEN, "rules": "Be kind."},
        {"messages": "dialog", "system": "rules"}, ("Be kind.", QUESTION, ANSWER),
        listed={"formatting": "sharegpt", "columns": {"messages": "dialog", "system": "rules"}},
    ),
    "llama-factory pairs": ColumnCase(
        "llamafactory", {"stage": "dpo"}, {"ask": QUESTION, "good": ANSWER, "bad": "No.", **OTHERS},
        {"prompt": "ask", "chosen": "good", "rejected": "bad"}, (QUESTION, ANSWER, "No."),
        listed={"ranking": True, "columns": {"prompt": "ask", "chosen": "good", "rejected": "bad"}},
    ),
    "llama-factory labels": ColumnCase(
        "llamafactory", {"stage": "kto"}, {"ask": QUESTION, "reply": ANSWER, "liked": True},
        {"prompt": "ask", "completion": "reply", "label": "liked"},
        listed={"columns": {"prompt": "ask", "response": "reply", "kto_tag": "liked"}},
    ),
    "llama-factory texts": ColumnCase(
        "llamafactory", {"stage": "pt"}, {"body": QUESTION}, {"text": "body"}, (QUESTION,),
        listed={"columns": {"prompt": "body"}},
    ),
    "trl texts": ColumnCase(
        "trl", {"dataset_text_field": "body", "completion_only_loss": None}, {"body": QUESTION, "text": "Wrong."},
        {"text": "body"}, (QUESTION,),
    ),
    "torchtune chats": ColumnCase(
        "torchtune", {"dataset": {
            "_component_": "torchtune.datasets.chat_dataset", "source": "json", "data_files": "rows.jsonl",
            "conversation_column": "dialog",
        }}, {"dialog": SPOKEN}, {"messages": "dialog"},
    ),
    "torchtune pairs of texts": ColumnCase(
        "torchtune", {"dataset": {
            "_component_": "torchtune.datasets.instruct_dataset", "source": "json", "data_files": "rows.jsonl",
            "column_map": {"input": "ask", "output": "reply"},
        }}, {"ask": QUESTION, "reply": ANSWER, **OTHERS}, {"prompt": "ask", "completion": "reply"},
    ),
    "oumi": ColumnCase(
        "oumi", {"data": {"train": {"collator_name": "text_completions_only_with_padding", "datasets": [{
            "dataset_name": "text_sft", "dataset_path": "rows.jsonl",
            "dataset_kwargs": {"prompt_column": "ask", "response_column": "reply"},
        }]}}}, {"ask": QUESTION, "reply": ANSWER, **OTHERS}, {"prompt": "ask", "completion": "reply"},
    ),
}  # fmt: skip


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings.cache_clear()
    return tmp_path


def import_chain(work: Path, case: ColumnCase) -> dict[str, Any]:
    """Import the tool's own config with the keys of the case; return the data source."""
    config = {**yaml.safe_load((OWN / f"{case.tool}.yaml").read_text()), **case.config}
    if case.tool == "llamafactory":
        for key in ("pref_beta", "pref_loss", "pref_ftx", "max_samples"):
            config.pop(key, None)
        config |= {"dataset": "mine", "dataset_dir": "."}
        (work / LIST).write_text(json.dumps({"mine": {"file_name": "rows.jsonl", **case.listed}}))
    (work / "own.yaml").write_text(yaml.safe_dump({key: value for key, value in config.items() if value is not None}))
    (work / "rows.jsonl").write_text("".join(json.dumps(case.row) + "\n" for _ in range(3)))
    result = import_configs(
        ImportInput(source=work / "own.yaml", settings=case.settings), Context(settings(), lambda line: None)
    )
    assert result.exit_code == 0, result.files[0].problem
    source: dict[str, Any] = yaml.safe_load(result.files[0].chain)["nodes"][0]["config"]
    return source["sets"].popitem()[1] if "sets" in source else source


@pytest.mark.parametrize("name", CASES)
def test_rows_are_read_under_the_columns_of_the_config(work: Path, tiny_model: Path, name: str) -> None:
    case = CASES[name]
    source = import_chain(work, case)
    assert source["columns"] == case.columns
    data_preview = preview(
        PreviewInput(
            path=source["path"], columns=source["columns"], format=source.get("format"), base_model=str(tiny_model),
            max_length=4096,
        ),
        Context(settings()),
    )  # fmt: skip
    assert (data_preview.looked_at, data_preview.dropped) == (3, {})
    text = "".join(part.text for row in data_preview.rendered for part in row.parts) or json.dumps(
        data_preview.raw.rows[0]
    )
    missing = [
        column_text
        for column_text in case.texts
        if column_text not in text and json.dumps(column_text)[1:-1] not in text
    ]
    assert not missing, text
    assert "Wrong" not in text
    assert "Be rude" not in text


@pytest.mark.parametrize(
    ("tool", "config", "because"),
    [
        ("axolotl", axolotl(message_property_mappings={"role": "speaker"}), "fields' usual names"),
        ("axolotl", axolotl(type={"field_instruction": "ask", "field_output": "reply"}), "prompt text of its own"),
        (
            "trl",
            {"dataset_text_field": "body", "completion_only_loss": True},
            "plain texts have no answers, and only answers are to be learned",
        ),
    ],
)
def test_columns_that_a_chain_cannot_read_are_refused(
    work: Path, tool: str, config: dict[str, Any], because: str
) -> None:
    with pytest.raises(Refused, match=because):
        import_chain(work, ColumnCase(tool, config, {"ask": QUESTION}, {}))


def test_sets_with_other_columns_are_one_mixture(work: Path) -> None:
    sets = [axolotl(field_messages="dialog")["datasets"][0], axolotl(path="more.jsonl")["datasets"][0]]
    source = import_chain(work, ColumnCase("axolotl", {"datasets": sets}, {"dialog": TURNS}, {}))
    assert source["mix"]["sets"] == {
        "rows-jsonl": {
            "path": "rows.jsonl", "columns": {"messages": "dialog", "system": "system", "tools": "tools"}
        },
        "more-jsonl": {"path": "more.jsonl"},
    }  # fmt: skip


def test_an_optional_column_may_be_missing_and_another_may_not(work: Path, tiny_model: Path) -> None:
    (work / "rows.jsonl").write_text(json.dumps({"frage": QUESTION, "antwort": ANSWER}) + "\n")
    base = {"path": "rows.jsonl", "base_model": str(tiny_model)}
    columns = {"prompt": "frage", "completion": "antwort"}
    assert preview(PreviewInput(**base, columns={**columns, "tools": "tools"}), Context(settings())).looked_at == 1
    with pytest.raises(InvalidInput, match=r"columns\.tools: there is no column 'functions'"):
        preview(PreviewInput(**base, columns={**columns, "tools": "functions"}), Context(settings()))
