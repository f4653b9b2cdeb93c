"""A job that a provider trains is ended there before it is forgotten here."""

from __future__ import annotations

import pytest

from trainyard.app.jobs.jobs import require_ended_at_provider
from trainyard.errors import Conflict


def test_a_paused_job_of_a_provider_is_not_cancelled_here_alone() -> None:
    row = {"name": "desk-1f2e3d4c", "backend": "together", "state": "paused"}
    with pytest.raises(Conflict, match=r"E-JOB-STATE: .* continues at together, .* jobs resume desk-1f2e3d4c"):
        require_ended_at_provider(row)
    require_ended_at_provider({**row, "state": "running"})
    require_ended_at_provider({**row, "backend": "native"})
