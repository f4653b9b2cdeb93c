"""Rows on words of other tools that are known here and that this release cannot carry out.

They are asked about a plain value before it is read as a spec, because no model of `spec/` has a place for these words:
a form or a schema that offered them would promise what does not exist.
"""

from __future__ import annotations

from trainyard.errors import Reason
from trainyard.json_types import JsonMapping
from trainyard.spec.axes.providers import RETIRED
from trainyard.spec.compat.context import Match, NodeView, Row, answers, fill

PROVIDER_FIELDS = ("backend", "provider")


def retired_provider(config: JsonMapping, _: NodeView | None) -> Match:
    """Return a provider that trains no more, which a trainer or a job names."""
    for field in PROVIDER_FIELDS:
        name = str(config.get(field, "")).lower()
        if name in RETIRED:
            why, instead = RETIRED[name]
            return {"field": field, "name": name, "why": why, "replacement": instead}
    return False


STEP_SERVICES = {
    "foundry_steps": "the training sessions of Microsoft Foundry (azure-ai-finetuningsessions 1.0.0b1) have no verb "
    "that gives weights out: a checkpoint can be sampled from there, and not be fetched, evaluated or deployed here",
}
"""Services that are trained at step by step, and that lack a verb without which no adapter comes home -> which."""


def step_service(config: JsonMapping, _: NodeView | None) -> Match:
    """Return the step service that a trainer names and that lacks a verb of a training."""
    name = str(config.get("backend", "")).lower()
    return name in STEP_SERVICES and {"name": name, "why": STEP_SERVICES[name]}


KEY_FIELDS = ("api_key_env", "api_key", "api_token", "authorization")
"""A key, or the variable with one. Its value is not repeated."""


WORD_ROWS = (
    Row(
        "provider", "R-PROVIDER", "trainer", "config.{field}", retired_provider,
        "The provider {name} trains no more: {why}.", "Use backend {replacement}.", scope="words",
    ),
    Row(
        "step-service", "R-PROVIDER", "trainer", "config.backend", step_service,
        "The backend {name} is not in this release: {why}.",
        "Use backend tinker, together_steps, fireworks_steps, remote (another Trainyard), or native.", scope="words",
    ),
    Row(
        "chain-key", "R-ENDPOINT", "*", "config.{field}",
        lambda config, _: [{"field": field} for field in KEY_FIELDS if field in config],
        "A chain does not say which key is sent where: a key belongs to an endpoint, which the operator names "
        "in trainyard.toml together with its address.",
        "Write `endpoint: NAME` in place of `{field}`, where trainyard.toml has [endpoints.NAME] with base_url and "
        "api_key_env.", scope="words",
    ),
)  # fmt: skip
"""Asked about plain values, by `spec/load`."""


def word_reasons(config: JsonMapping, node: str | None, field: str | None = None) -> list[Reason]:
    """Return the reasons that the words of a plain mapping give; `field` is where they are, if the row cannot know
    it.
    """
    return [
        fill(row, arguments, node, field if field is not None else str(arguments["field"]))
        for row in WORD_ROWS
        for arguments in answers(row.when(config, None))  # type: ignore[arg-type]
    ]
