"""The size of the error of an estimate before anything has run: of these rows, not of the most that they could be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainyard.app.context import Context
from trainyard.app.plan.parse import parse_request
from trainyard.app.plan.plan import plan_chain
from trainyard.settings import Settings
from trainyard.surfaces.invocation import build_request, execute_operation

EPOCHS, MAX_LENGTH = 3, 512
LARGEST_ERROR = 0.05
"""Of rows and tokens, which nothing but the data decides."""


@pytest.fixture
def here(tmp_path: Path, tiny_model: Path) -> Settings:
    work = tmp_path / "work"
    (work / "docs").mkdir(parents=True)
    chats = [
        {"messages": [
            {"role": "user", "content": f"What does bicycle {number} cost for a day?"},
            {"role": "assistant", "content": f"Bicycle {number} costs {number % 7 + 2} euros for each day."},
        ]}
        for number in range(120)
    ]  # fmt: skip
    (work / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats))
    for number in range(15):
        text = (
            f"# Fees of zone {number}\n\n## Parking\n\n- A bicycle costs {number + 2} euros a day.\n"
            f"- A tandem costs {number + 4} euros a day.\n\n## Hours\n\nThe office of zone {number} opens at "
            f"{number % 3 + 6} in the morning and closes after {number % 4 + 8} hours.\n"
        )
        (work / "docs" / f"station-{number}.md").write_text(text)
    return Settings(home=tmp_path / "home", working_folder=work, default_base_model=str(tiny_model))


def list_estimates(here: Settings, template: str, **parameters: Any) -> dict[str, Any]:
    plan = plan_chain(parse_request(template, parameters).spec, here)
    return {node.id: node.estimate for node in plan.nodes}


def preview_data(here: Settings, **fields: Any) -> Any:
    return execute_operation(
        "data preview", build_request("data preview", fields), Context(here, say=lambda _text: None)
    )


def error(planned: float, real: float) -> float:
    return abs(planned / real - 1)


def test_the_tokens_of_a_plan_are_those_of_the_rows(here: Settings) -> None:
    hyper = {"epochs": EPOCHS, "max_length": MAX_LENGTH, "batch_size": 4}
    trainer = list_estimates(here, "training-job", dataset={"path": "chats.jsonl"}, hyperparameters=hyper)["trainer"]
    real = preview_data(here, path="chats.jsonl", base_model=str(here.default_base_model)).lengths
    assert (trainer.rows, trainer.steps) == (120, 120 * EPOCHS // 4)
    assert error(trainer.tokens, real.mean * 120) <= LARGEST_ERROR
    assert real.mean < MAX_LENGTH / 5, "an estimate by the longest that is allowed would be off by more"


def test_the_pairs_of_a_plan_are_those_that_the_documents_give(here: Settings) -> None:
    count, wordings = 600, 3
    estimates = list_estimates(here, "qa-pipeline", documents="docs", count=count, wordings=wordings)
    generation = preview_data(here, path="docs", generate=True, count=count, wordings=wordings).generation
    rows = generation.found_pairs * wordings
    assert 0 < rows < count / 3
    assert error(estimates["ai-generator"].rows, rows) <= LARGEST_ERROR
    trainer = estimates["trainer"]
    assert 0 < trainer.rows < rows, "some are held out"
    assert trainer.steps == -(-trainer.rows // 4) * EPOCHS
