"""Restart of services that died: `python -m trainyard.prefect_api.reviving`, called by the watchdog; and its log lines.

A process of its own, so that the services it starts do not belong to the watchdog. A service counts as dead when its
record is there and its process is not: `trainyard down` ends the watchdog first and removes each record. Everything
happens under the lock of `up` and `down`, after another look, so that a service that was stopped meanwhile stays down.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from trainyard.app import services as stack
from trainyard.app.stack.api_service import NAME as API
from trainyard.app.stack.api_service import start_api
from trainyard.app.stack.data_service import NAME as DATA
from trainyard.app.stack.data_service import start_data
from trainyard.app.stack.stack import begin_work, start_embedded
from trainyard.compute.services import EMBEDDED, find_service, is_healthy, record_path
from trainyard.errors import TrainyardError
from trainyard.serve.targets import local
from trainyard.settings import Settings, load_settings


def log_line(settings: Settings, name: str, text: str, level: Literal["INFO", "ERROR"] = "INFO") -> str:
    """Return one line of text with its local time, or with level, logger and Unix seconds as the JSON logs of the
    services.
    """
    now = time.time()
    if settings.log_format == "text":
        return f"{datetime.fromtimestamp(now).isoformat(timespec='seconds')} {text}"
    record = {"name": name, "msg": text, "levelname": level, "severity": level, "created": now}
    return json.dumps(record, ensure_ascii=False)


LOGGER = "trainyard.reviving"
BACK_OFF_S = (0.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Wait before the first restart, between its end and the second, …; the last for every further one."""
STEADY_S = 600.0
"""Nothing has died for that long: the next death counts as the first again."""


def list_dead_services(settings: Settings) -> list[str]:
    """Return the services of this home that were started, not stopped, and whose process is gone."""
    records = [record_path(settings, name) for name in ("server", "worker", API, DATA, EMBEDDED)]
    records += local.list_expected(settings)
    return [path.stem for path in records if path.is_file() and find_service(path) is None]


def revive(settings: Settings, say: Callable[[str], None]) -> list[str]:
    """Start the dead services again; returns their names. Raises what their start raises."""
    with stack.exclusive(settings):
        dead = list_dead_services(settings)
        if "server" in dead:
            stack.start_server(settings, say, auth=not stack.open_server_mark(settings).exists())
        url = stack.api_url(settings)
        if "worker" in dead and url is not None and is_healthy(url, timeout_s=10):
            begin_work(settings, url, say)
        if API in dead and url is not None:
            start_api(settings, url, say)
        if DATA in dead and url is not None:
            start_data(settings, url, say)
        if EMBEDDED in dead:
            start_embedded(settings, say)
        for line in local.restore_servers(settings) if dead else ():
            say(line)
    return dead


@dataclass
class Reviver:
    """Calls `revive` in a process of its own when something is dead, less often the more often it dies."""

    settings: Settings
    tries: int = 0
    next_at: float = 0.0
    """By `time.monotonic()`."""
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def look(self) -> list[str]:
        """Return the started actions, in sentences; never waits for a restart."""
        now = time.monotonic()
        if self.child is not None:
            if self.child.poll() is not None:
                self.child, self.next_at = None, now + BACK_OFF_S[min(self.tries, len(BACK_OFF_S) - 1)]
            return []
        dead = list_dead_services(self.settings)
        if not dead:
            self.tries = 0 if now - self.next_at > STEADY_S else self.tries
            return []
        if self.tries and now < self.next_at:
            return []
        self.tries += 1
        # A session of its own: who ends the watchdog's tree must not end a start in the middle.
        argv = [sys.executable, "-P", "-m", "trainyard.prefect_api.reviving"]
        self.child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
        return [f"{', '.join(dead)} died and is started again (try {self.tries})"]


def main() -> int:
    settings = load_settings()
    try:
        revive(settings, lambda line: print(log_line(settings, LOGGER, line), flush=True))
    except TrainyardError as error:
        print(log_line(settings, LOGGER, str(error), "ERROR"), flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
