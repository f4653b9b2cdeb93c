"""Stored chains: revisions that never change, and two writers of one number."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainyard.errors import Conflict, NotFound
from trainyard.stores.chain_revisions import ChainStore, StoredChain, nodes_by_id


def chain(name: str = "guide", tenant: str = "default", **body: object) -> StoredChain:
    return StoredChain(
        id="", tenant=tenant, revision=0, name=name, body={"name": name, **body}, digest="d" * 64, nodes=1
    )


@pytest.fixture
def store(tmp_path: Path) -> ChainStore:
    ticks = iter(range(1, 1000))
    return ChainStore(tmp_path / "chains", now=lambda: float(next(ticks)))


def test_revisions_are_numbered_and_stay(store: ChainStore, tmp_path: Path) -> None:
    first = store.create(chain(steps=1))
    second = store.write(chain(steps=2).model_copy(update={"id": first.id, "revision": 2}))
    assert (first.revision, second.revision) == (1, 2)
    assert store.find("guide") == store.find(first.id) == second
    assert store.show(second, 1) == first
    assert first.etag != second.etag
    assert first.etag.startswith("1-")
    with pytest.raises(NotFound, match=r"has no revision 3\. Why: Its revisions are 1 to 2"):
        store.show(second, 3)
    (path,) = tmp_path.glob("chains/default/chain-*/1.json")
    assert json.loads(path.read_bytes())["schema_version"] == 2


def test_one_of_many_writers_takes_a_number(store: ChainStore) -> None:
    first = store.create(chain())

    def write(number: int) -> bool:
        try:
            store.write(chain(steps=number).model_copy(update={"id": first.id, "revision": 2}))
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(16))) == 1
    assert store.find(first.id).revision == 2


def test_tenants_do_not_see_each_other(store: ChainStore) -> None:
    acme_chain, other_chain = store.create(chain(tenant="acme")), store.create(chain(tenant="other"))
    assert store.list("acme") == [acme_chain]
    assert store.find("guide", "acme") == acme_chain
    missing = "chain-000000000000"
    with pytest.raises(NotFound) as error:
        store.find(other_chain.id, "acme")
    with pytest.raises(NotFound) as other:
        store.find(missing, "acme")
    assert str(error.value).replace(other_chain.id, missing) == str(other.value)
    with pytest.raises(Conflict, match=r"'guide' is the name of 2 stored chains"):
        store.find("guide")


def test_a_deleted_chain_is_gone_as_a_whole(store: ChainStore, tmp_path: Path) -> None:
    first = store.create(chain())
    store.delete(first)
    assert store.list() == []
    assert list(tmp_path.glob("chains/default/*")) == []
    for late in (store.delete, lambda stored: store.write(stored.model_copy(update={"revision": 2}))):
        with pytest.raises(NotFound, match="E-NOT-FOUND"):
            late(first)
    (tmp_path / "chains" / "default" / "chain-0123456789ab").mkdir()  # its writer died before it wrote
    assert store.list() == []


def test_nodes_are_compared_with_themselves() -> None:
    body = {"nodes": [{"type": "trainer"}, {"type": "trainer", "id": "two"}, {"type": "trainer", "config": {}}]}
    assert list(nodes_by_id(body)["nodes"]) == ["trainer", "two", "trainer-2"]
