"""Chat templates as the trainers use them. What one writes, and under which limits: `trainyard.data.renderers`."""

from __future__ import annotations

from trainyard.data.renderers.limited import TemplateLimit
from trainyard.data.renderers.rendering import Piece, Renderer
from trainyard.data.renderers.rendering import turn_of as turn
from trainyard.data.renderers.spans import common_prefix
from trainyard.data.renderers.templates import PLAIN_TEMPLATE

__all__ = ["PLAIN_TEMPLATE", "Piece", "Renderer", "TemplateLimit", "common_prefix", "turn"]
