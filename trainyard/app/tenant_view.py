"""Answers to a token of a tenant: what lies outside of its folder is not there, and no place of this machine is named.

A file that does not exist, one that belongs to another tenant, a link that leads out and a folder of the system are
answered with the same words: the difference would say what exists.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from trainyard.app.context import Caller
from trainyard.errors import NotFound, Reason, Refused, TrainyardError
from trainyard.locations import CHECKOUT
from trainyard.settings import Settings

OUTSIDE, MISSING = "R-PATH-ROOT", "E-DATA-NOT-FOUND"
WHAT = "There is no such file or folder in the data of this tenant."
DO = "Give a path inside the tenant's folder, relative to it."
HIDDEN = "…"


def is_stranger(caller: Caller) -> bool:
    """Return whether a caller may know nothing of the machine but its tenant's part."""
    return caller.remote and bool(caller.tenant)


def hide_reasons(caller: Caller, reasons: Sequence[Reason], settings: Settings) -> list[Reason]:
    """Return the reasons as a caller may read them."""
    if not is_stranger(caller):
        return list(reasons)
    return [hide_reason(reason, settings) for reason in reasons]


def hide_reason(reason: Reason, settings: Settings) -> Reason:
    if reason.code in (OUTSIDE, MISSING):
        return Reason(MISSING, reason.node, reason.field, WHAT, DO)
    because, instead = (hide_places(text, settings) for text in (reason.because, reason.instead))
    return replace(reason, because=because, instead=instead)


def hide_error(caller: Caller, error: TrainyardError, settings: Settings) -> TrainyardError:
    """Return the error as a caller may read it."""
    if not is_stranger(caller):
        return error
    reasons = error.reasons if isinstance(error, Refused) else ()
    if error.code == MISSING or (reasons and all(reason.code in (OUTSIDE, MISSING) for reason in reasons)):
        return NotFound(WHAT, do=DO, code=MISSING)
    if isinstance(error, Refused):
        return Refused(hide_reasons(caller, reasons, settings), what=hide_places(error.what, settings))
    error.what, error.why, error.do = (hide_places(text, settings) for text in (error.what, error.why, error.do))
    return error


def hide_places(text: str, settings: Settings) -> str:
    """Return a text without the folders of this machine that the service knows."""
    for folder in list_hidden_folders(settings):
        text = text.replace(folder, HIDDEN)
    return text


def hide_places_in_json(body: bytes, settings: Settings) -> bytes:
    """Return a JSON text without the folders of this machine that the service knows."""
    for folder in list_folder_names(list_installation_folders(settings)):
        body = body.replace(folder.encode(), HIDDEN.encode())
    return body


def list_installation_folders(settings: Settings) -> list[Path]:
    """Return the folders of this installation. An answer with rows may contain `/tmp` of its own, which stays."""
    return [settings.home, settings.working_folder, *settings.data_roots, CHECKOUT]


def list_hidden_folders(settings: Settings) -> list[str]:
    """Return the folders whose names no stranger reads in an error, the longest first."""
    machine = [Path(sys.prefix), Path(sys.base_prefix), Path(tempfile.gettempdir()), Path.home()]
    return list_folder_names([*list_installation_folders(settings), *machine])


def list_folder_names(folders: Iterable[Path]) -> list[str]:
    """Return the names of folders as written and as resolved, the longest first; the root of the disk is none."""
    names = {str(path) for folder in folders for path in (folder, folder.resolve()) if path != Path(path.anchor)}
    return sorted(names, key=len, reverse=True)
