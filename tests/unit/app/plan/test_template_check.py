"""`check` tries the chat template of a trainer on the tokenizer of its base, whether its rows are here or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.plan.parse import parse_request
from trainyard.app.plan.plan import plan_chain
from trainyard.app.plan.refusals import list_refusals
from trainyard.app.plan.resolve import resolve_chain
from trainyard.settings import Settings, settings

HUB = [{"type": "data_source", "config": {"hub": "acme/rows"}}]
DOCUMENTS = [{"type": "data_source", "config": {"path": "pages"}}, {"type": "ai_generator", "config": {"count": 4}}]
ROWS = [{"type": "data_source", "config": {"path": "rows.jsonl"}}]
GRPO = {"type": "grpo", "rewards": [{"type": "length", "target_tokens": 8}]}
TURNS = [{"role": "user", "content": "A valve?"}, {"role": "assistant", "content": "It opens."}]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "one.md").write_text("# Valve\n\nThe valve weighs two kilograms. It costs 30 euros.\n")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": TURNS}) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(tmp_path))
    settings.cache_clear()
    return settings()


def problems(here: Settings, before: list[dict[str, Any]], template: str, stage: Any = "sft", **more: Any) -> list[str]:
    trainer = {"type": "trainer", "config": {"stage": stage, "engine": {"template": template}, **more}}
    chain = {"name": "try", "nodes": [*before, trainer]}
    spec = parse_request(chain).spec
    lines = [reason.line() for reason in list_refusals(resolve_chain(spec, here), here)]
    planned = plan_chain(spec, here)
    assert [refusal["code"] for refusal in planned.refusals] == [line.split()[0] for line in lines]
    return lines


@pytest.mark.parametrize("before", [HUB, DOCUMENTS, ROWS], ids=["hub", "documents", "rows"])
@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("llama3", "'llama3' does not render a chat on the tokenizer of starter. It says: 'bos_token' is undefined."),
        ("gemma3", "starter has no <start_of_turn>, <end_of_turn>, which the chat template 'gemma3' writes."),
        ("chatml", ""),
        ("auto", ""),
    ],
)
def test_a_template_is_refused_for_tokens_that_the_tokenizer_does_not_have(
    here: Settings, before: list[dict[str, Any]], template: str, says: str
) -> None:
    lines = problems(here, before, template)
    assert [line.split()[0] for line in lines] == ["E-CHAT-TEMPLATE"] * bool(says)
    assert all(says in line and "engine.template to auto" in line for line in lines)


@pytest.mark.parametrize("stage", ["dpo", "kto", GRPO], ids=["dpo", "kto", "grpo"])
def test_every_stage_of_chats_is_tried(here: Settings, stage: Any) -> None:
    (line,) = problems(here, HUB, "phi3", stage)
    assert "starter has no <|user|>, <|end|>, <|assistant|>" in line
    assert problems(here, HUB, "qwen2.5", stage) == []


def test_texts_have_no_template_and_added_tokens_count(here: Settings) -> None:
    assert problems(here, HUB, "auto", "cpt") == []
    tokens = {"added_tokens": ["<start_of_turn>", "<end_of_turn>"], "method": "full"}
    assert problems(here, HUB, "gemma3", **tokens) == []


def test_a_file_with_a_fault_is_refused_once(here: Settings, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ raise_exception('No chat.') }}")
    (line,) = problems(here, HUB, "chat.jinja")
    assert line.startswith("E-CHAT-TEMPLATE")
