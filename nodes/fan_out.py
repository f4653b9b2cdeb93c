"""Workers for the pieces of a node, where the operator has set `fan_out`."""

from __future__ import annotations

import logging
from functools import partial

from nodes.runner import NodeContext
from trainyard.data.pieces.contract import FanOut


def fan_out(context: NodeContext) -> FanOut | None:
    """Return what has the node's pieces done, and note it in the run; None where its own process does the work."""
    settings = context.settings.fan_out
    if settings is None:
        return None
    from trainyard.prefect_api.fan_out import PrefectFanOut  # the runners, which few runs need

    context.say(f"in {settings.num_pieces} pieces or fewer on {settings.description}")
    warn = partial(context.say, level=logging.WARNING)
    return PrefectFanOut(settings, context.node.id, warn, context.require_running)
