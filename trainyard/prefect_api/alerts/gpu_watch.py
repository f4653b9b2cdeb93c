"""A GPU whose memory is nearly full (`gpu_memory_alert_percent`): one event when that begins, not one a look."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

from trainyard.app.gpus import MONITOR
from trainyard.compute.monitor.readings import GpuMonitor, GpuReading
from trainyard.json_types import JsonObject
from trainyard.prefect_api.server import GPU_PRESSURE, client
from trainyard.settings import Settings

RELIEVED_PERCENT = 5
"""By so much less the pressure has ended: memory that goes up and down at the threshold is one episode."""


@dataclass
class GpuWatch:
    """Looks at the memory of each GPU; says once that it is nearly full, and again after it was not."""

    settings: Settings
    monitor: GpuMonitor = MONITOR
    pressed: set[int] = field(default_factory=set, init=False)
    """GPUs whose event was sent."""

    def look(self) -> list[str]:
        """Send the event of each GPU that has become nearly full. Raises what the server's client raises."""
        threshold = self.settings.gpu_memory_alert_percent
        messages = []
        for gpu in self.monitor.read().gpus if threshold else ():
            percent = 100 * gpu.memory_used_mb / max(1, gpu.memory_total_mb)
            if percent < threshold - RELIEVED_PERCENT:
                self.pressed.discard(gpu.index)
            if percent >= threshold and gpu.index not in self.pressed:
                message = f"GPU {gpu.index} ({gpu.name}) uses {gpu.memory_used_mb:,} of {gpu.memory_total_mb:,} MiB."
                with client() as prefect:
                    prefect.request("POST", "/events", json=[self.event(gpu, message)])
                self.pressed.add(gpu.index)
                messages.append(message)
        return messages

    def event(self, gpu: GpuReading, message: str) -> JsonObject:
        return {
            "id": str(uuid4()),
            "occurred": datetime.now(UTC).isoformat(),
            "event": GPU_PRESSURE,
            "resource": {
                "prefect.resource.id": f"trainyard.gpu.{self.settings.home}.{gpu.index}",
                "prefect.resource.name": f"GPU {gpu.index} of {self.settings.home}",
            },
            "payload": {
                "message": message, "memory_used_mb": gpu.memory_used_mb, "memory_total_mb": gpu.memory_total_mb,
                "threshold_percent": self.settings.gpu_memory_alert_percent,
            },
        }  # fmt: skip
