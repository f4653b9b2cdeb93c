"""Every operation as a method, for the sessions of a home of a test."""

from __future__ import annotations

from typing import Any

from trainyard.app.context import OWNER, Caller, Context
from trainyard.callbacks import ignore
from trainyard.settings import Settings
from trainyard.surfaces.invocation import check_request, execute_operation
from trainyard.surfaces.sdk.surface import Surface


def make_surface(settings: Settings, caller: Caller = OWNER) -> Any:
    def call(name: str, fields: dict[str, Any]) -> Any:
        return execute_operation(name, check_request(name, fields, name), Context(settings, say=ignore, caller=caller))

    return Surface(call)
