"""Lines of the watchdog's log: for people, or JSON objects with the keys of Prefect's own (`log_format`)."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Literal

from trainyard.settings import Settings


def log_line(settings: Settings, name: str, text: str, level: Literal["INFO", "ERROR"] = "INFO") -> str:
    """Return one line of text with its local time, or with level, logger and Unix seconds as the JSON logs of the
    services.
    """
    now = time.time()
    if settings.log_format == "text":
        return f"{datetime.fromtimestamp(now).isoformat(timespec='seconds')} {text}"
    record = {"name": name, "msg": text, "levelname": level, "severity": level, "created": now}
    return json.dumps(record, ensure_ascii=False)
