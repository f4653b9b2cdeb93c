"""What two revisions of a stored chain differ in, setting by setting."""

from __future__ import annotations

from typing import Any

from trainyard.app.chains.stored import store_of
from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.operations.chains import DiffInput
from trainyard.spec.changes import list_changes
from trainyard.stores.chain_revisions import nodes_by_id


class SettingChange(Response):
    name: str
    """Dotted, such as `nodes.trainer.config.stage`."""
    before: Any = None
    after: Any = None


class RevisionDiff(Response):
    id: str
    name: str
    before: int
    after: int
    changes: tuple[SettingChange, ...]


def show_difference(given: DiffInput, context: Context) -> RevisionDiff:
    """Raises `NotFound` (`E-NOT-FOUND`) for a revision that there is not."""
    store = store_of(context)
    newest = store.find(given.chain, context.caller.tenant)
    first, second = store.show(newest, given.before), store.show(newest, given.after or newest.revision)
    found = list_changes(nodes_by_id(first.body), nodes_by_id(second.body))
    changes = tuple(SettingChange(name=name, before=old, after=new) for name, old, new in found)
    return RevisionDiff(id=newest.id, name=newest.name, before=first.revision, after=second.revision, changes=changes)
