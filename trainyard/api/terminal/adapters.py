"""Adapter versions and models as text."""

from __future__ import annotations

import json
from typing import Any

from trainyard.api.terminal.text import table


def adapters_text(result: Any) -> str:
    if not result.rows:
        return "no adapters yet"
    header = list(result.rows[0])
    return table([[str(row[key]) for key in header] for row in result.rows], header)


def converted_text(result: Any) -> str:
    return f"{result.target} ({result.to}, was {result.was})"


def record_text(result: Any) -> str:
    return json.dumps(result.record, indent=2, default=str)
