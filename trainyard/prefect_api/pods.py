"""Runs whose pod cannot start: a wrong image fails its run with the reason, and its job is removed.

Kubernetes tries to pull an image without end, and Prefect's observer only logs why. A pod that no node can take is
different: nodes may be added, so its run waits, with the reason in its log.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from prefect.client.schemas.filters import LogFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import LogSort
from prefect.states import Failed

from trainyard.prefect_api.operating import runs_of_pool
from trainyard.prefect_api.server import client
from trainyard.settings import Settings

PATIENCE = timedelta(seconds=30)
"""After the first failed pull: a registry may be busy."""
PULL_FAILED = "Image pull failed"
"""Prefix of the observer's line in the log of a run (prefect_kubernetes/diagnostics.py)."""
NOT_FOUND = 404


class PodWatch:
    """Looks at the pods of a Kubernetes pool through what their observer logged."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def look(self) -> list[str]:
        """Fail the runs whose image cannot be pulled; return what was done."""
        if self.settings.work_pool_type != "kubernetes":
            return []
        done = []
        for run in runs_of_pool(self.settings, [StateType.PENDING]):
            if ":" in str(run.infrastructure_pid or "") and (why := find_pull_failure(run)):
                done.append(fail_run(run, why))
        return done


def find_pull_failure(run: FlowRun) -> str:
    """Return why the image of a run's pod cannot be pulled, if that was logged some time ago; else an empty text."""
    logs = LogFilter.model_validate({"flow_run_id": {"any_": [run.id]}})
    with client() as prefect:
        lines = prefect.read_logs(log_filter=logs, limit=20, sort=LogSort.TIMESTAMP_DESC)
    failures = [line for line in lines if line.message.startswith(PULL_FAILED)]
    since = run.state.timestamp if run.state else datetime.now(UTC)
    recent = [line for line in failures if line.timestamp > since - PATIENCE]
    if not recent or recent[-1].timestamp > datetime.now(UTC) - PATIENCE:
        return ""
    return recent[0].message


def fail_run(run: FlowRun, why: str) -> str:
    """Write the run's end and remove its job; return it in a sentence."""
    state: State[object] = Failed(message=f"{why} Next: correct the image, then `trainyard jobs retry`.")
    with client() as prefect:
        prefect.set_flow_run_state(run.id, state, force=True)
    problem = asyncio.run(delete_job(str(run.infrastructure_pid)))
    ending = f"; its job could not be removed: {problem}" if problem else ""
    return f"the run {run.id} ({run.name}) failed: its image cannot be pulled{ending}"


async def delete_job(address: str) -> str:
    """Delete a job, given as `namespace:name`; return why it could not be deleted, or an empty text."""
    import aiohttp  # for a pool of pods
    from kubernetes_asyncio import client as kubernetes  # extra kubernetes
    from kubernetes_asyncio import config

    namespace, _, name = address.partition(":")
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]
        api = kubernetes.ApiClient()
    except config.ConfigException:
        api = await config.new_client_from_config()
    try:
        await kubernetes.BatchV1Api(api).delete_namespaced_job(name, namespace, propagation_policy="Background")
    except kubernetes.ApiException as error:
        return "" if error.status == NOT_FOUND else f"{error.status} {error.reason}"
    except (aiohttp.ClientError, OSError) as error:
        return str(error) or type(error).__name__
    else:
        return ""
    finally:
        await api.close()
