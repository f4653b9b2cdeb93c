"""How fast does a JSON Lines file of chats become validated, normalised, exactly deduplicated Arrow?

Ours against the idiomatic `datasets` pipeline that leaves the same rows: `load_dataset("json")`, then one batched `map`
that checks and normalises each chat, hashes it and leaves out what it has seen. Both start from the file and end in
Arrow on disk, one thread of Python. Ours reads in a limited child; its start, once for a data source, is left out and
reported by `reading_limits`. The last figure is the resident memory of reading 2 GB, in a process of its own
(`--memory FILE` is that process; `--quick` leaves it out).
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets

from benchmarks.harness import Row, alternate, finish, median, size
from trainyard.data.limited.service import keep_service
from trainyard.data.sources import jsonl_to_arrow

NUM_ROWS, ROW_BYTES = size(120_000, 1_000), 834
DUPLICATES = 0.02
MEMORY_BYTES = 2 << 30
WORDS = ["rail", "tie", "gauge", "bolt", "spike", "train", "yard", "signal", "brake", "the", "of", "on", "which", "is"]
COLUMNS = ("doc_id", "source", "split", "pair", "tools")


def chat_line(chance: random.Random, number: int) -> str:
    """One chat of three turns, padded to 834 bytes with its newline."""
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": f"Question {number}: {' '.join(chance.choices(WORDS, k=30))}?"},
        {"role": "assistant", "content": f'"{" ".join(chance.choices(WORDS, k=40))}."\n- '},
    ]
    missing = ROW_BYTES - 1 - len(json.dumps({"messages": messages}))
    messages[-1]["content"] += "".join(chance.choices("abcdefghij ", k=missing))
    return json.dumps({"messages": messages}) + "\n"


def write_chats(path: Path, num_rows: int) -> int:
    """Write the rows, 2 % of them copies of earlier ones. Returns how many are different."""
    chance = random.Random(0)
    pool: list[str] = []
    copies = 0
    with path.open("w", encoding="utf-8") as stream:
        for number in range(num_rows):
            if pool and chance.random() < DUPLICATES:
                stream.write(chance.choice(pool))
                copies += 1
                continue
            line = chat_line(chance, number)
            if len(pool) < 1000:
                pool.append(line)
            stream.write(line)
    return num_rows - copies


def write_two_gigabytes(path: Path) -> None:
    """About 2.6 million different rows: 5,000 chats, each with another number in front of its question."""
    chance = random.Random(1)
    pool = [chat_line(chance, 1_000_000).replace("Question 1000000", "Question %07d") for _ in range(5000)]
    with path.open("w", encoding="utf-8") as stream:
        number = 0
        while stream.tell() < MEMORY_BYTES:
            stream.write("".join(line % (number + index) for index, line in enumerate(pool)))
            number += len(pool)


def run_ours(path: Path, num_rows: int) -> float:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        balance = jsonl_to_arrow(path, Path(folder))
    assert balance["kept"] == num_rows, balance
    return float(balance["read"])


def clean_batch(name: str, seen: set[bytes]) -> Callable[[dict[str, Any], list[int]], dict[str, list[Any]]]:
    """The batched function of the `datasets` pipeline: check, normalise, hash, drop what was seen."""

    def clean(batch: dict[str, Any], indices: list[int]) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {column: [] for column in ("messages", *COLUMNS)}
        for index, messages in zip(indices, batch["messages"], strict=True):
            roles = [turn["role"] for turn in messages]
            if roles[-1:] != ["assistant"] or not messages[-1]["content"].strip() or "system" in roles[1:]:
                continue
            turns = [{"role": t["role"], "content": t["content"], "tool_calls": None} for t in messages]
            digest = hashlib.sha256(json.dumps(turns).encode()).digest()[:16]
            if digest in seen:
                continue
            seen.add(digest)
            row = (turns, digest[:8].hex(), f"{name}:{index + 1}", "train", "", None)
            for column, value in zip(columns, row, strict=True):
                columns[column].append(value)
        return columns

    return clean


def peer(path: Path, num_rows: int) -> float:
    with tempfile.TemporaryDirectory(dir=path.parent) as cache:
        loaded = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=cache)
        turn = {name: datasets.Value("string") for name in ("role", "content", "tool_calls")}
        texts = {name: datasets.Value("string") for name in COLUMNS}
        features = datasets.Features({"messages": datasets.List(turn), **texts})
        cleaned = loaded.map(
            clean_batch(path.name, set()), batched=True, with_indices=True, features=features,
            remove_columns=loaded.column_names, new_fingerprint="cleaned",
        )  # fmt: skip
        assert len(cleaned) == num_rows, (len(cleaned), num_rows)
        return float(len(loaded))


def peak_memory_mb(path: Path) -> float:
    """Most resident memory of a process that reads the file, in MiB."""
    command = [sys.executable, "-m", "benchmarks.jsonl_to_arrow", "--memory", str(path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def read_for_memory(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        jsonl_to_arrow(path, Path(folder))
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    print(max(resource.getrusage(kind).ru_maxrss for kind in kinds) / 1024)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--memory"]:
        read_for_memory(Path(arguments[1]))
        return 0
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chats.jsonl"
        num_rows = write_chats(path, NUM_ROWS)
        with keep_service():  # a data source starts it once, for all its files
            samples = alternate({"ours": lambda: run_ours(path, num_rows), "datasets": lambda: peer(path, num_rows)})
        speed = {name: median(variant_samples, "per_cpu_second") for name, variant_samples in samples.items()}
        rows = [
            Row.at_least("rows per CPU-second, 834-byte chats", speed["ours"], 100_000),
            Row.ratio_at_least("rows per CPU-second", speed["ours"], speed["datasets"], "datasets batched map", 3),
        ]
        if "--quick" not in arguments:
            large = Path(folder) / "large.jsonl"
            write_two_gigabytes(large)
            rows.append(Row.at_most("resident MiB while reading 2 GB", peak_memory_mb(large), 512))
    return finish("jsonl_to_arrow", rows, samples)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
