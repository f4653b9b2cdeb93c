"""What earlier versions wrote in a home, brought into the form of this one.

Adapters, checkpoints, the night's ledger and its markers are read as they are. Work folders of trainings are named by a
digest that a new setting changes; a run of the same training renames its own folder, and this operation all of them.
"""

from __future__ import annotations

from trainyard.api.context import Context
from trainyard.api.requests.stack import MigrateInput
from trainyard.api.responses import Response
from trainyard.backends.earlier import rename_work_folder, work_folders_of_earlier_versions


class MigratedFolder(Response):
    """A work folder, as an earlier version named it and as this one does."""

    before: str
    now: str


class Migration(Response):
    """What was changed, or would be."""

    dry_run: bool
    folders: tuple[MigratedFolder, ...]


def migrate(given: MigrateInput, context: Context) -> Migration:
    """Rename the work folders of earlier versions. Raises `Conflict` (`E-DEVICE-BUSY`) while one is worked in."""
    settings = context.settings
    found = list(work_folders_of_earlier_versions(settings.runs / "training"))
    for before, now in () if given.dry_run else found:
        rename_work_folder(before, now, settings)
    folders = tuple(MigratedFolder(before=str(before), now=str(now)) for before, now in found)
    return Migration(dry_run=given.dry_run, folders=folders)
