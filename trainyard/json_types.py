"""Names of the types of decoded JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]
"""A JSON object whose fields are validated where they are read: by a model, a schema or the code that needs them."""
JsonMapping = Mapping[str, Any]
"""A JSON object that is only read."""
