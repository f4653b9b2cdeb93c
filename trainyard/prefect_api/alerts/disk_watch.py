"""A disk with less free space than the setting `min_free_mb`: one event when that begins, not one a look."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

from trainyard.prefect_api.server import DISK_LOW, client
from trainyard.settings import Settings
from trainyard.stores.files import lacking_space

BYTES_PER_MIB = 1 << 20


@dataclass
class DiskWatch:
    """Looks at the free space of the home's disk; says once that it is low, and again after it was not."""

    settings: Settings
    low: bool = field(default=False, init=False)

    def look(self) -> list[str]:
        """Send the event if space has become low; return its sentence. Raises what the server's client raises."""
        lacking = lacking_space(self.settings.home, self.settings.min_free_mb * BYTES_PER_MIB)
        if lacking is None:
            self.low = False
        if lacking is None or self.low:
            return []
        event: dict[str, object] = {
            "id": str(uuid4()),
            "occurred": datetime.now(UTC).isoformat(),
            "event": DISK_LOW,
            "resource": {
                "prefect.resource.id": f"trainyard.home.{self.settings.home}",
                "prefect.resource.name": str(self.settings.home),
            },
            "payload": {"message": lacking.what},
        }
        with client() as prefect:
            prefect.request("POST", "/events", json=[event])
        self.low = True
        return [lacking.what]
