"""Two answers to one question, as text."""

from __future__ import annotations

from typing import Any


def answer_text(result: Any) -> str:
    if result.error:
        return f"refused: {result.error}"
    return f"{result.base_model}: {result.base}\n\n{result.adapter_version}: {result.adapter}"
