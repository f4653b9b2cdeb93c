"""The settings with which the data of a caller is read."""

from __future__ import annotations

from trainyard.app.context import Context
from trainyard.settings import Settings


def settings_of(context: Context) -> Settings:
    """The settings of the caller's tenant, whose folder is one of the data roots.

    A token of a tenant reads that tenant's folder, not the one in which the operator works.
    """
    caller, settings = context.caller, context.settings
    if not (caller.remote and caller.tenant):
        return settings.for_tenant(caller.tenant)
    update = {"tenant": caller.tenant, "working_folder": settings.tenant_folder(caller.tenant)}
    return settings.model_copy(update=update)
