"""The line about a node, and the values behind its defaults."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.spec.nodes import NODE_CONFIGS
from trainyard.spec.summaries import format_rate, list_defaults, summarize_node
from trainyard.spec.training import TrainerConfig

LINES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("data_source", {"path": "docs/handbook"}, "handbook"),
    ("data_source", {"path": "a.csv", "format": "alpaca", "max_rows": 50}, "a.csv · alpaca · at most 50 rows"),
    ("data_source", {"url": "https://host/rows.jsonl?key=secret"}, "rows.jsonl"),
    ("data_source", {"hub": "org/name"}, "hub:org/name"),
    ("ai_generator", {"count": 60}, "by rule · 60 rows"),
    ("ai_generator", {"model": "qwen", "count": 1}, "qwen · 1 row"),
    ("validator", {}, "up to 512 tokens · 10% held out"),
    ("trainer", {}, "sft · lora r32 · 10 epochs · lr 0.003"),
    ("trainer", {"method": "full", "hyperparameters": {"max_steps": 40}}, "sft · full · 40 steps · lr 3e-4"),
    ("trainer", {"control": "shuffled_answers"}, "sft control · lora r32 · 10 epochs · lr 0.003"),
    ("evaluator", {}, "against the base"),
    ("deployer", {"role": "bike-desk", "targets": [{}, {"type": "embedded"}]}, "role bike-desk → embedded"),
)


@pytest.mark.parametrize(("kind", "config", "line"), LINES)
def test_a_node_says_what_it_does(kind: str, config: dict[str, Any], line: str) -> None:
    assert summarize_node(NODE_CONFIGS[kind].model_validate(config), "starter") == line


def test_every_type_of_node_has_a_line() -> None:
    starts = {"data_source": {"path": "x"}}
    assert all(
        summarize_node(config_class.model_validate(starts.get(name, {}))) for name, config_class in NODE_CONFIGS.items()
    )


def test_defaults_are_the_values_of_the_run() -> None:
    config = TrainerConfig.model_validate({"method": {"type": "lora", "rank": 8}, "hyperparameters": {"epochs": 1}})
    assert list_defaults(config, "starter") == {
        "base_model": "starter", "method.alpha": 16.0, "method.dropout": 0.0, "method.target_modules": "all-linear",
        "hyperparameters.learning_rate": 3e-3,
    }  # fmt: skip


@pytest.mark.parametrize(("rate", "text"), [(2e-4, "2e-4"), (1.5e-5, "1.5e-5"), (0.01, "0.01"), (0.001, "0.001")])
def test_a_rate_is_written_as_people_write_it(rate: float, text: str) -> None:
    assert format_rate(rate) == text
