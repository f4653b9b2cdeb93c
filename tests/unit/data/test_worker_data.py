"""Rows on a data worker: pinned by their commit, of one's own tenant, at the first worker that answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.data_worker import DataWorker, make_data_worker, serving_data
from trainyard.data.readers.streams import Limits
from trainyard.data.remote.fetching import FetchJob, read_pin
from trainyard.data.remote.kinds import find_kind, find_place, pin_sources
from trainyard.errors import Denied, InvalidInput, LimitExceeded, NotFound, Refused, Unavailable
from trainyard.settings import Settings
from trainyard.spec.nodes import DataSourceConfig, SourceSet
from trainyard.spec.repositories import parse_place
from trainyard.stores.repositories.client import DataWorkers
from trainyard.stores.repositories.commits import Commit
from trainyard.stores.repositories.names import RepositoryName

pytestmark = pytest.mark.integration
DOWN = "http://127.0.0.1:9"


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[DataWorker]:
    with serving_data(make_data_worker(tmp_path / "worker")) as worker:
        yield worker


@pytest.fixture
def here(worker: DataWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("DATA_WORKER_TOKEN", worker.token("default"))
    write(worker, tmp_path, 3)
    return Settings(home=tmp_path / "home", data_workers=(DOWN, worker.url))


def write(worker: DataWorker, tmp_path: Path, rows: int, large: int = 0) -> str:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}", "completion": "x" * large}) + "\n" for n in range(rows)))
    workers = DataWorkers([worker.url], worker.token("default"))
    return workers.upload_folder("datasets", "default/training", {"sft/rows.jsonl": file, "b.jsonl": file}, "add")


def source(worker: DataWorker, path: str = "/datasets/training/sft/rows.jsonl") -> SourceSet:
    return SourceSet(path=path, data_worker=worker.url)


def fetch(config: SourceSet, here: Settings, folder: Path) -> tuple[list[str], dict[str, object]]:
    """Return the fetched texts and the facts of a set."""
    lines: list[str] = []
    kind = find_kind(config)
    assert kind is not None
    folder.mkdir()
    *_, last = kind.fetch(FetchJob(config, here, folder, Limits(), lambda fraction, line: lines.append(line)))
    files = [last.path] if last.path.is_file() else sorted(path for path in last.path.rglob("*") if path.is_file())
    return [path.read_text() for path in files], {**last.facts, "lines": lines}


def test_a_run_reads_the_commit_that_it_has_pinned(worker: DataWorker, here: Settings, tmp_path: Path) -> None:
    config = source(worker)
    said: list[str] = []
    pin_sources(DataSourceConfig(**config.model_dump()), here, run="r", refresh=False, say=said.append)
    place = find_place(config, here)
    assert place is not None
    pin = read_pin(place, here)
    assert pin is not None
    assert said == [f"{worker.url}/datasets/default/training@main/sft/rows.jsonl is {pin.revision[:12]}, 1 file"]
    write(worker, tmp_path, 7, large=300_000)
    (text,), facts = fetch(config, here, tmp_path / "first")
    assert (len(text.splitlines()), facts["revision"]) == (3, pin.revision)
    pin_sources(DataSourceConfig(**config.model_dump()), here, run="s", refresh=True, say=said.append)
    (text,), _ = fetch(config, here, tmp_path / "second")
    assert len(text.splitlines()) == 7
    texts, _ = fetch(source(worker, f"/datasets/training@{pin.revision}"), here, tmp_path / "third")
    assert [len(text.splitlines()) for text in texts] == [3, 3]


def test_a_worker_that_is_down_is_reported_and_the_next_is_asked(
    worker: DataWorker, here: Settings, tmp_path: Path
) -> None:
    config = SourceSet(path="/datasets/training/b.jsonl", data_worker=DOWN)
    (text,), facts = fetch(config, here, tmp_path / "fetched")
    assert len(text.splitlines()) == 3
    assert list(facts["unreachable"]) == [DOWN]  # type: ignore[call-overload]
    assert any(line.startswith(f"the data worker {DOWN} does not answer") for line in facts["lines"])  # type: ignore[attr-defined]


def test_no_worker_that_answers_is_an_error(here: Settings, worker: DataWorker, tmp_path: Path) -> None:
    alone = here.model_copy(update={"data_workers": (DOWN,)})
    with pytest.raises(Unavailable, match=f"No data worker answers: {DOWN}"):
        fetch(SourceSet(path="/datasets/training/b.jsonl", data_worker=DOWN), alone, tmp_path / "fetched")


def test_only_listed_workers_get_the_token(here: Settings, worker: DataWorker, tmp_path: Path) -> None:
    unlisted = here.model_copy(update={"data_workers": (DOWN,)})
    with pytest.raises(Refused, match=r"R-DATA-WORKER .*is not a data worker of this home"):
        fetch(source(worker), unlisted, tmp_path / "fetched")


def test_data_of_another_tenant_is_not_there(here: Settings, worker: DataWorker, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no repository other/training of datasets"):
        fetch(source(worker), here.for_tenant("other"), tmp_path / "fetched")


def test_missing_data_and_a_wrong_token_are_named(
    here: Settings, worker: DataWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFound, match=r"has no file or folder 'c.jsonl' at main"):
        fetch(source(worker, "/datasets/training/c.jsonl"), here, tmp_path / "first")
    monkeypatch.setenv("DATA_WORKER_TOKEN", "ty_wrong")
    with pytest.raises(Denied, match="E-AUTH"):
        fetch(source(worker, "/datasets/training/c.jsonl"), here, tmp_path / "second")


@pytest.mark.parametrize("before", ["the content", "the commit"])
def test_a_worker_that_ends_in_the_middle_of_an_upload_is_replaced_by_the_next(
    before: str, worker: DataWorker, tmp_path: Path
) -> None:
    """Both store in one folder, as data workers that share a bucket do."""
    large = tmp_path / "large"
    large.write_bytes(b"x" * (2 << 20))
    with ExitStack() as first_runs:
        first = first_runs.enter_context(serving_data(DataWorker(worker.settings, worker.repositories)))

        class EndingFirst(DataWorkers):
            """Data workers of which the first ends after it has offered to take the content, or has it."""

            def request(self, method: str, path: str, **options: Any) -> httpx.Response:
                if before == "the commit" and "/commit/" in path:
                    first_runs.close()
                answer = super().request(method, path, **options)
                if before == "the content" and path.endswith("/objects/batch"):
                    first_runs.close()
                return answer

        said: list[str] = []
        workers = EndingFirst([first.url, worker.url], worker.token("default"), said.append)
        commit = workers.upload_folder("models", "default/coder", {"weights.bin": large}, "add")
    assert [line.split(" does")[0] for line in said] == [f"the data worker {first.url}"]
    files = DataWorkers([worker.url], worker.token("default")).list_files("models", "default/coder", commit)
    assert [(file["path"], file["size"]) for file in files] == [("weights.bin", 2 << 20)]


def test_a_quota_that_ends_in_the_middle_of_an_upload_leaves_no_commit_and_no_content(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("a.bin", "b.bin")}
    for name, file in files.items():
        file.write_bytes(name.encode() * (300 << 10))  # 1.5 MiB
    with serving_data(make_data_worker(tmp_path / "small", {"small": 2})) as worker:
        workers = DataWorkers([worker.url], worker.token("small"))
        workers.create("models", "small/coder")
        head = workers.find_commit("models", "small/coder", "main")
        with pytest.raises(LimitExceeded, match=r"E-LIMIT: .*The storage quota of small is reached"):
            workers.upload_folder("models", "small/coder", files, "add")
        assert workers.find_commit("models", "small/coder", "main") == head
        worker.repositories.pins.clear()
        worker.repositories.collect("small", grace_s=-60.0)
        usage = worker.repositories.quotas.read("small")
        assert (usage.stored, usage.reserved) == (0, {})


def test_a_worker_writes_nothing_outside_of_the_folder_of_a_set(
    here: Settings, worker: DataWorker, tmp_path: Path
) -> None:
    """A worker that was taken over names files as it likes."""
    name, repositories = RepositoryName("datasets", "default", "training"), worker.repositories
    (entry,) = {entry for path, entry in repositories.resolve(name, "main").files.items() if path == "b.jsonl"}
    hostile = repositories.write_commit(name, Commit({"sft/../../../escaped.jsonl": entry}, summary="hostile"))
    refs = worker.settings.repositories / name.folder / "refs.json"
    refs.write_text(json.dumps({**json.loads(refs.read_bytes()), "branches": {"main": hostile.id}}))
    with pytest.raises(InvalidInput, match="not a valid path in a repository"):
        fetch(source(worker, "/datasets/training/sft"), here, tmp_path / "set")
    assert not list(tmp_path.rglob("escaped*"))


def test_folders_that_are_uploaded_at_one_moment_are_not_mixed(worker: DataWorker, tmp_path: Path) -> None:
    """Each commit has the files of its own folder, as the commits of one after the other have."""
    workers, name = DataWorkers([worker.url], worker.token("default")), RepositoryName("models", "default", "desk")
    for letter in "ab":
        (tmp_path / letter).write_text(letter)
    prepare, others = workers.prepare, []

    def prepare_late(*arguments: Any) -> Any:
        if not others:  # another upload is faster
            others.append(worker.fill("models", "default/desk", tmp_path / "other"))
        return prepare(*arguments)

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "old.txt").write_text("of the other")
    workers.prepare = prepare_late  # type: ignore[method-assign]
    commit = workers.upload_folder("models", "default/desk", {"a": tmp_path / "a", "b": tmp_path / "b"}, "add")
    assert sorted(worker.repositories.resolve(name, commit).files) == ["a", "b"]
    assert sorted(worker.repositories.resolve(name, others[0]).files) == ["old.txt"]


def test_uploading_again_adds_nothing(worker: DataWorker, tmp_path: Path) -> None:
    first = write(worker, tmp_path, 5, large=400_000)
    assert write(worker, tmp_path, 5, large=400_000) == first
    assert write(worker, tmp_path, 6) != first


@pytest.mark.parametrize("path", ["/sets/a.jsonl", "a.jsonl", "/datasets/a/../b", "/datasets//b", "/datasets/../b/c"])
def test_path_outside_of_repositories_is_none(path: str) -> None:
    assert parse_place(path) is None
