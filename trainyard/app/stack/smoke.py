"""A short real training on one backend, as a job: what `backends` says of it, tried."""

from __future__ import annotations

import json

from trainyard.app.chains.run import run
from trainyard.app.context import Context
from trainyard.app.plan.parse import JOB
from trainyard.app.run_records import RunResult
from trainyard.operations.backends import BackendTestInput
from trainyard.operations.chains import RunInput
from trainyard.settings import Settings

ROWS, STEPS, FOLDER = 16, 2, "smoke-test"


def try_backend(request: BackendTestInput, context: Context) -> RunResult:
    """Start a training of two steps on a backend. Raises what `jobs create` raises for it."""
    tenant = context.caller.tenant or context.settings.tenant
    settings = {
        "name": f"smoke-test-{request.name.value}",
        "tenant": tenant,
        "backend": request.name.value,
        "dataset": {"path": write_rows(context.settings, tenant)},
        "hyperparameters": {"max_steps": STEPS, "batch_size": 2},
    }
    return run(RunInput(target=JOB, parameters=settings, refresh=True, watch=request.watch, yes=True), context)


def write_rows(settings: Settings, tenant: str) -> str:
    """Return the rows of the test, in the tenant's own data root."""
    folder = settings.home / "tenants" / tenant / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"instruction": f"What is twice {n}?", "output": f"Twice {n} is {2 * n}."} for n in range(ROWS)]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)
