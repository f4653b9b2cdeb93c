"""An operator's own function that converts rows: named in the settings, limited like a reader, part of the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.reading import Result, json_lines, read_all, settings_for
from trainyard.app.plan.keys import content_key
from trainyard.data.functions import converter_digest
from trainyard.errors import InvalidInput
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ResolvedNode
from trainyard.spec.nodes import DataSourceConfig

FUNCTIONS = """
def ticket(row):
    if not row["reply"]:
        raise ValueError("no reply")
    return {"prompt": row["subject"], "completion": row["reply"]}

def pair(row):
    return {"prompt": row["subject"], "chosen": row["reply"], "rejected": row["subject"]}

def broken(row):
    return row["nothing"]

def online(row):
    import socket
    socket.create_connection(("127.0.0.1", 9))

NUMBER = 3
"""
TICKETS = [{"subject": f"Why {n}?", "reply": f"Because {n}."} for n in range(4)] + [{"subject": "Why?", "reply": ""}]


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "house.py"
    path.write_text(FUNCTIONS)
    (tmp_path / "tickets.jsonl").write_text(json_lines(*TICKETS))
    return path


def converter_settings(module: Path, **functions: str) -> Settings:
    named = functions or {"ticket": "ticket"}
    converters = {name: f"{module}:{function}" for name, function in named.items()}
    return settings_for(module.parent, converters=converters)


def read(settings: Settings, output: Path, **config: Any) -> Result:
    (result,) = read_all(output, settings, **{"max_bad_fraction": 0.5, **config}).values()
    return result


def test_rows_are_what_the_function_makes_of_them(module: Path, tmp_path: Path) -> None:
    result = read(converter_settings(module), tmp_path / "out", path="tickets.jsonl", converter="ticket")
    assert result.port is Port.SFT
    assert [message.content for message in result.rows[1].messages] == ["Why 1?", "Because 1."]
    assert result.rows[1].source == "tickets.jsonl:2"
    (bad,) = result.quarantine
    assert (bad["reason"], bad["line"]) == ("converter", 5)
    assert "the converter ticket raised ValueError: no reply" in json.dumps(bad)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "subject,reply\nWhy?,Because.\nHow?,So.\n"),
        ("t.json", json.dumps(TICKETS[:2])),
        ("t.log", json_lines(*TICKETS[:2])),
    ],
)
def test_every_kind_of_file_of_rows_is_converted(name: str, text: str, module: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert len(read(converter_settings(module), tmp_path / "out", path=name, converter="ticket").rows) == 2


def test_it_may_fill_another_port_and_be_part_of_a_mixture(module: Path, tmp_path: Path) -> None:
    settings = converter_settings(module, pairs="pair", ticket="ticket")
    assert read(settings, tmp_path / "pairs", path="tickets.jsonl", converter="pairs").port is Port.PREFERENCE
    sets = {"a": {"path": "tickets.jsonl", "converter": "ticket"}, "b": {"path": "tickets.jsonl", "converter": "pairs"}}
    with pytest.raises(InvalidInput, match="a contains sft, b contains preference"):
        read(settings, tmp_path / "mixed", mix={"sets": sets})


@pytest.mark.parametrize(
    ("converter", "problem"),
    [
        ("other", r"trainyard.toml has no converter 'other'.*It has gone, nothing"),
        ("gone", r"The converter 'gone' cannot be used.*AttributeError"),
        ("number", r"NUMBER of .*house.py is not a function"),
        ("no_file", r"There is no module /nowhere.py"),
        ("no_module", r"There is no module no_such_package.rows"),
        ("broken", r"The converter broken converts none of the first 5 rows.*raised KeyError: 'nothing'"),
        ("online", r"The converter online converts none"),
    ],
)
def test_a_converter_that_cannot_be_used_says_why(converter: str, problem: str, module: Path, tmp_path: Path) -> None:
    settings = converter_settings(
        module, gone="gone", nothing="nothing", number="NUMBER", broken="broken", online="online"
    )
    more = {"no_file": "/nowhere.py:x", "no_module": "no_such_package.rows:x"}
    if converter == "other":
        settings = converter_settings(module, gone="gone", nothing="nothing")
    else:
        settings = settings.model_copy(update={"converters": settings.converters | more})
    with pytest.raises(InvalidInput, match=rf"E-DATA-FORMAT: .*{problem}"):
        read(settings, tmp_path / "out", path="tickets.jsonl", converter=converter)


def test_its_source_is_part_of_the_key_of_the_result(module: Path) -> None:
    settings = converter_settings(module)
    node = ResolvedNode(
        id="data", type="data_source", config=DataSourceConfig(path="tickets.jsonl", converter="ticket"), inputs={}
    )
    before = content_key(node, {}, settings, "run")
    assert content_key(node, {}, settings, "another") == before
    module.write_text(FUNCTIONS.replace("Because", "So") + "# changed\n")
    assert content_key(node, {}, settings, "run") != before
    with pytest.raises(InvalidInput, match="no converter 'ticket'"):
        converter_digest("ticket", load_settings())


def test_a_chain_without_one_has_the_dump_that_it_had() -> None:
    assert "converter" not in DataSourceConfig(path="a.jsonl").model_dump()
    for wrong in ({"repository": "r"}, {"path": "a.jsonl", "format": "documents"}):
        with pytest.raises(ValueError, match="a converter converts rows"):
            DataSourceConfig.model_validate({**wrong, "converter": "ticket"})
    with pytest.raises(ValueError, match="converter has no effect next to mix"):
        DataSourceConfig.model_validate({"mix": {"sets": {"a": {"path": "a.jsonl"}}}, "converter": "ticket"})


def test_a_setting_names_a_module_and_a_function() -> None:
    with pytest.raises(InvalidInput, match=r"E-SETTINGS.*converters\.x"):
        load_settings(converters={"x": "def convert(row): ..."})
