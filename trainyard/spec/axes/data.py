"""Data between nodes: ports, formats of rows, and generators."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trainyard.spec.axes.axis import AxisValue, Facts


class Port(StrEnum):
    """Port between nodes; its data travels always as a reference, never as data."""

    DOCUMENTS = "documents"
    SFT = "sft"
    PREFERENCE = "preference"
    LABELLED = "labelled"
    PROMPTS = "prompts"
    """Prompts without answers to learn, for stages that draw completions."""
    TEXT = "text"
    ADAPTER = "adapter"
    MODEL = "model"
    REPORT = "report"
    REWARD = "reward"
    """The adapter or model of a trainer of stage reward, where a later trainer reads its scores."""


BAD_FRACTION = 0.05
"""Default share of rows that may be bad, or refused by the chat template, before a run fails."""
DATA_PORTS = frozenset({Port.DOCUMENTS, Port.SFT, Port.PREFERENCE, Port.LABELLED, Port.PROMPTS, Port.TEXT})
MADE_PORTS = (Port.ADAPTER, Port.MODEL, Port.REPORT, Port.REWARD)
"""Ports that no data source fills."""


@dataclass(frozen=True)
class FormatFacts(Facts):
    """A format."""

    ports: tuple[Port, ...]
    """What a file of it may contain; empty where only its rows say."""


class DataFormat(AxisValue):
    """Shape of the rows of a data set; `auto` detects and reports it."""

    facts: FormatFacts

    AUTO = FormatFacts("auto", ())
    ALPACA = FormatFacts("alpaca", (Port.SFT,))
    SHAREGPT = FormatFacts("sharegpt", (Port.SFT, Port.PREFERENCE, Port.LABELLED))
    OPENAI = FormatFacts("openai", (Port.SFT, Port.PREFERENCE, Port.LABELLED))
    PROMPT_COMPLETION = FormatFacts("prompt_completion", (Port.SFT,))
    PREFERENCE = FormatFacts("preference", (Port.PREFERENCE,))
    LABELLED = FormatFacts("labelled", (Port.LABELLED,))
    PROMPTS = FormatFacts("prompts", (Port.PROMPTS,))
    TOOL_CALLS = FormatFacts("tool_calls", (Port.SFT,))
    TEXT = FormatFacts("text", (Port.TEXT,))
    DOCUMENTS = FormatFacts("documents", (Port.DOCUMENTS,))


COLUMN_FIELDS: dict[str, tuple[Port, ...]] = {
    "messages": (Port.SFT, Port.PREFERENCE, Port.LABELLED, Port.PROMPTS),
    "prompt": (Port.PROMPTS,),
    "completion": (Port.SFT,),
    "answer": (Port.PROMPTS,),
    "chosen": (Port.PREFERENCE,),
    "rejected": (Port.PREFERENCE,),
    "label": (Port.LABELLED,),
    "text": (Port.TEXT,),
    "input": (),
    "history": (),
    "system": (),
    "tools": (),
}
"""Field of a row that a column may be mapped to -> what its rows may be; empty for a field that a row may lack."""
DECIDING_FIELDS = ("chosen", "label", "completion", "messages", "text", "prompt")
"""The first mapped column of these decides the kind of the rows."""


class GeneratorKind(StrEnum):
    """Engine that writes the generated rows."""

    EXTRACTIVE = "extractive"
    LOCAL = "local"
    OPENAI = "openai"
    VLLM = "vllm"


class GenerationTemplate(StrEnum):
    QA = "qa"
    INSTRUCTION = "instruction"
    CODE = "code"
    PREFERENCE = "preference"
