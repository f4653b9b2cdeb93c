"""Lines of the watchdog: the keys of Prefect's JSON logs, or text with a time."""

from __future__ import annotations

import json
import logging
import time

from prefect.logging.formatters import JsonFormatter

from trainyard.prefect_api.reviving import log_line
from trainyard.settings import load_settings


def test_a_line_has_keys_of_prefects_json_lines() -> None:
    before = time.time()
    line = log_line(load_settings(log_format="json"), "trainyard.watchdog", 'ended "x"\nand', "ERROR")
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["msg"], entry["levelname"], entry["name"]) == ('ended "x"\nand', "ERROR", "trainyard.watchdog")
    assert before <= entry["created"] <= time.time()
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "x", (), None)
    assert entry.keys() <= json.loads(JsonFormatter("default", "", "%").format(record)).keys()


def test_a_line_for_people_begins_with_its_time() -> None:
    line = log_line(load_settings(), "trainyard.watchdog", "ended the orphan 12")
    assert line.endswith(" ended the orphan 12")
    assert line[:4] == time.strftime("%Y")
