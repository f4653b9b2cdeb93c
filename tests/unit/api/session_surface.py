"""Every operation as a method, for the sessions of a home of a test."""

from __future__ import annotations

from typing import Any

from trainyard.api.context import OWNER, Caller, Context
from trainyard.api.invocation import carry_out
from trainyard.api.sdk.surface import Surface, checked_request
from trainyard.callbacks import ignore
from trainyard.settings import Settings


def surface_of(settings: Settings, caller: Caller = OWNER) -> Any:
    def call(name: str, fields: dict[str, Any]) -> Any:
        return carry_out(name, checked_request(name, fields), Context(settings, say=ignore, caller=caller))

    return Surface(call)
