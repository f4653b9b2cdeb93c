"""The string that opens this home's Prefect server: one file of the home, which its owner alone can read.

Prefect's basic authentication compares one text. The server has it as `PREFECT_SERVER_API_AUTH_STRING`; the worker, the
watchdog, flows and `prefect` commands send it as `PREFECT_API_AUTH_STRING`; a person types it into the login page. It
outlives restarts, because running flows know no other value. Delete the file while nothing runs to get a new one.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import stat
from pathlib import Path

from trainyard.errors import InvalidInput
from trainyard.settings import PREFECT_KEYS, Settings
from trainyard.stores.files import DISK, make_folders
from trainyard.stores.whole import new_file

CLIENT_VARIABLE, SERVER_VARIABLE = PREFECT_KEYS[:2]
"""No child that trains, generates, evaluates, reads or runs a script has them: who knows the string starts anything."""
PRINTABLE = re.compile(r"[!-~]{8,512}")
"""ASCII without spaces: what an HTTP header, the login page of a browser and a shell all leave as it is."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def auth_file(settings: Settings) -> Path:
    return settings.home / "prefect-auth-string"


def read_auth(settings: Settings) -> str | None:
    """Return the home's string; None if it has none yet. Raises `InvalidInput` (`E-AUTH`) if the file is unusable."""
    path = auth_file(settings)
    try:
        return usable(path.read_text(encoding="utf-8").rstrip("\n"), str(path))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidInput(
            f"{path} cannot be read: {reason}.",
            why="It has the string that opens the home's Prefect server, and is for the home's owner alone.",
            do="Work as the user who called `trainyard up`, or set TRAINYARD_HOME to a home of your own.",
            code="E-AUTH",
        ) from error


def keep_auth(settings: Settings, value: str | None = None) -> str:
    """The home's string: `value`, else the one that it has, else a new one of 256 random bits. The file is 0600."""
    text = usable(value, SERVER_VARIABLE) if value is not None else read_auth(settings)
    text = text or f"trainyard:{secrets.token_urlsafe(32)}"
    path = auth_file(settings)
    if text != read_auth(settings):
        make_folders(DISK, path.parent)
        with new_file(path) as temporary:  # at no moment readable by others
            temporary.unlink(missing_ok=True)
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text + "\n")
    if path.stat().st_mode & OTHERS:
        path.chmod(0o600)
    return text


def usable(text: str, source: str) -> str:
    """Return the text as it is. Raises `InvalidInput` (`E-AUTH`), which does not repeat it."""
    if not PRINTABLE.fullmatch(text):
        raise InvalidInput(
            f"The auth string of {source} has {len(text)} characters and cannot be used.",
            why="It has to be 8 to 512 printable ASCII characters without spaces, such as user:password.",
            do="Set another, or remove it: `trainyard up` makes a random one.",
            code="E-AUTH",
        )
    return text


def auth_header(text: str | None) -> dict[str, str]:
    """Return the header of a request to the API; nothing without a string."""
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"} if text else {}
