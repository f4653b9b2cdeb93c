"""What travels between nodes: ports, formats of rows, and who generates rows."""

from __future__ import annotations

from enum import StrEnum


class Port(StrEnum):
    """What travels between nodes, always as a reference, never as data."""

    DOCUMENTS = "documents"
    SFT = "sft"
    PREFERENCE = "preference"
    LABELLED = "labelled"
    TEXT = "text"
    ADAPTER = "adapter"
    MODEL = "model"
    REPORT = "report"


DATA_PORTS = frozenset({Port.DOCUMENTS, Port.SFT, Port.PREFERENCE, Port.LABELLED, Port.TEXT})


class DataFormat(StrEnum):
    """Shape of the rows of a data set; `auto` detects and reports it."""

    AUTO = "auto"
    ALPACA = "alpaca"
    SHAREGPT = "sharegpt"
    OPENAI = "openai"
    PROMPT_COMPLETION = "prompt_completion"
    PREFERENCE = "preference"
    LABELLED = "labelled"
    TOOL_CALLS = "tool_calls"
    TEXT = "text"
    DOCUMENTS = "documents"


class GeneratorKind(StrEnum):
    """Who writes the generated rows."""

    EXTRACTIVE = "extractive"
    LOCAL = "local"
    OPENAI = "openai"
    VLLM = "vllm"


class GenerationTemplate(StrEnum):
    QA = "qa"
    INSTRUCTION = "instruction"
    CODE = "code"
    PREFERENCE = "preference"
