"""The Hub's own clients against a data worker: each in a process of its own, which reads HF_ENDPOINT."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data_worker import DataWorker, make_data_worker, serving_data
from trainyard.stores.repositories.names import RepositoryName

pytestmark = pytest.mark.integration

DATA = """
import sys
from pathlib import Path
import datasets
from huggingface_hub import HfApi
api, folder = HfApi(), Path(sys.argv[1])
(folder / "data").mkdir(parents=True)
(folder / "data" / "train.jsonl").write_text("".join(f'{{"a": {n}}}\\n' for n in range(100)))
(folder / "data" / "test.jsonl").write_text('{"a": 1}\\n')
(folder / "README.md").write_text("---\\nlicense: mit\\n---\\n# Rows\\n")
api.create_repo("acme/chats", repo_type="dataset")
api.upload_folder(folder_path=folder, repo_id="acme/chats", repo_type="dataset")
api.create_tag("acme/chats", tag="v1", repo_type="dataset")
(folder / "data" / "train.jsonl").write_text('{"a": 7}\\n')
api.upload_folder(folder_path=folder, repo_id="acme/chats", repo_type="dataset")
print({name: len(rows) for name, rows in datasets.load_dataset("acme/chats").items()})
print({name: len(rows) for name, rows in datasets.load_dataset("acme/chats", revision="v1").items()})
print(sum(1 for row in datasets.load_dataset("acme/chats", revision="v1", split="train", streaming=True)))
print(len(api.list_repo_commits("acme/chats", repo_type="dataset")), api.whoami()["name"])
"""
MODEL = """
import sys
from pathlib import Path
from huggingface_hub import HfApi, snapshot_download
from transformers import AutoModelForCausalLM, AutoTokenizer
source, work = map(Path, sys.argv[1:])
model = AutoModelForCausalLM.from_pretrained(source)
model.push_to_hub("acme/tiny")
AutoTokenizer.from_pretrained(source).push_to_hub("acme/tiny")
again = AutoModelForCausalLM.from_pretrained("acme/tiny")
print(all((a == b).all() for a, b in zip(model.state_dict().values(), again.state_dict().values())))
large = bytes(range(256)) * (40 << 12)
(work / "large.bin").write_bytes(large)
HfApi().upload_file(path_or_fileobj=work / "large.bin", path_in_repo="more/large.bin", repo_id="acme/tiny")
print((Path(snapshot_download("acme/tiny")) / "more" / "large.bin").read_bytes() == large)
"""
WRITER = """
import sys
from huggingface_hub import HfApi
api = HfApi()
for number in range(4):
    name = f"{sys.argv[1]}/{number}.txt"
    api.upload_file(path_or_fileobj=name.encode(), path_in_repo=name, repo_id="acme/shared")
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[DataWorker]:
    with serving_data(make_data_worker(tmp_path / "worker")) as worker:
        yield worker


def start(worker: DataWorker, folder: Path, program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], env={**os.environ, **worker.environment("acme", folder)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(worker: DataWorker, folder: Path, program: str, *arguments: object) -> list[str]:
    process = start(worker, folder, program, *arguments)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors[-3000:]
    return output.splitlines()


def test_datasets_reads_what_a_folder_upload_wrote(worker: DataWorker, tmp_path: Path) -> None:
    assert run(worker, tmp_path / "hf", DATA, tmp_path / "rows") == [
        "{'train': 1, 'test': 1}", "{'train': 100, 'test': 1}", "100", "3 acme",
    ]  # fmt: skip


def test_transformers_reads_what_it_pushed(worker: DataWorker, tiny_model: Path, tmp_path: Path) -> None:
    assert run(worker, tmp_path / "hf", MODEL, tiny_model, tmp_path) == ["True", "True"]


def test_eight_clients_lose_nothing(worker: DataWorker, tmp_path: Path) -> None:
    run(worker, tmp_path, 'from huggingface_hub import HfApi; HfApi().create_repo("acme/shared")')
    processes = [start(worker, tmp_path / f"{writer}", WRITER, writer) for writer in range(8)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-3000:]
    head = worker.repositories.resolve(RepositoryName("models", "acme", "shared"), "main")
    assert sorted(head.files) == [f"{writer}/{number}.txt" for writer in range(8) for number in range(4)]
