"""Runs of stored chains on a real server: started by revision, listed, and in the way of a deletion."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed

from flows.chain import chain
from trainyard.app.context import Context
from trainyard.errors import Conflict, NotFound
from trainyard.prefect_api import server
from trainyard.settings import Settings, settings
from trainyard.spec.states import JobState
from trainyard.surfaces.invocation import build_request, execute_operation

pytestmark = pytest.mark.usefixtures("prefect")
ROWS = '{"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]}\n'


@pytest.fixture
def deployed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A server that knows `chain/adhoc`, without a worker that would run it."""
    (tmp_path / "rows.jsonl").write_text(ROWS * 8)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))
    server.bootstrap(settings())
    deployment = chain.to_deployment(name="adhoc", work_pool_name=settings().work_pool)
    deployment.entrypoint = "flows/chain.py:chain"
    deployment.apply(work_pool_name=settings().work_pool)
    return settings()


def list_run_ids(result: Any) -> set[str]:
    return {run.id for run in result.runs}


def test_runs_of_a_stored_chain(deployed: Settings, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def do(operation: str, **fields: Any) -> Any:
        monkeypatch.delenv("PREFECT_HOME", raising=False)  # which the call before has set, for a server of this home
        return execute_operation(operation, build_request(operation, fields), Context(deployed, say=lambda _: None))

    def build_body(steps: int) -> dict[str, Any]:
        config = {"base_model": str(tiny_model), "hyperparameters": {"max_steps": steps}}
        source = {"type": "data_source", "config": {"path": "rows.jsonl"}}
        return {"name": "guide", "nodes": [source, {"type": "trainer", "config": config}]}

    stored = do("chains create", spec=build_body(1))
    assert do("chains show", chain="guide").last_run is None
    first = do("chains run", chain="guide")
    newer = do("chains update", chain="guide", spec=build_body(2), if_match=stored.etag)
    second, old = do("chains run", chain=stored.id, tags=("mine",)), do("chains run", chain=stored.id, revision=1)
    assert (first.digest, second.digest, old.digest) == (stored.digest, newer.digest, stored.digest)
    assert stored.digest != newer.digest
    assert list_run_ids(do("chains runs", chain="guide")) == {first.id, second.id, old.id}
    assert (second.chain_id, second.chain, second.revision) == (stored.id, "guide", 2)
    last = do("chains show", chain="guide").last_run
    assert (last.id, last.revision, last.state) == (old.id, 1, JobState.PENDING)
    with get_client(sync_client=True) as prefect:
        run = prefect.read_flow_run(UUID(old.run_id))
        assert {stored.id, "revision-1"} <= set(run.tags)
        assert run.parameters["spec"]["nodes"][1]["config"]["hyperparameters"]["max_steps"] == 1
        answer = do("chains runs", chain="guide")
        assert {run.run_id: run.revision for run in answer.runs} == {first.run_id: 1, second.run_id: 2, old.run_id: 1}
        assert len(do("chains runs", chain="guide", limit=1, offset=2).runs) == 1
        with pytest.raises(Conflict, match=rf"E-CONFLICT: The chain guide .* has runs that have not .*{old.id}"):
            do("chains delete", chain="guide")
        for chain_run in answer.runs:
            prefect.set_flow_run_state(UUID(chain_run.run_id), Completed(), force=True)
    assert do("chains delete", chain="guide").revisions == 2
    with pytest.raises(NotFound, match="E-NOT-FOUND"):
        do("chains runs", chain=stored.id)
