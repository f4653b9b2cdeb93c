"""Corpora that grow by working: one append-only file per bucket, immutable snapshots by their SHA-256, and new tuples.

    <root>/<bucket>.jsonl                       one tuple a line, in either of the spellings below
    <root>/snapshots/<bucket>/<sha256>.jsonl    what one training learned from, canonical, never written again

An *engineering* tuple is a commit: `{diff, message, brief?}`, or whole `{messages: [...]}`. An *apprenticeship* tuple
is a correction: `{prompt, shadow, verdict}` (the model's own answer, and the one that a person approved), or
`{prompt, rejected, chosen}`. A line that is not such a tuple is counted with its reason and never trained on; two lines
that mean the same count once. A tuple is *new* while no completed training has had it in its snapshot: there is no
second mark of "how far" that a crash could leave behind. Lines are parsed in limited children (`data/limited`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from trainyard.data.limited.corpus_tuples import Value, bad, spell
from trainyard.data.limited.requests import MOST_CHARS, Parse, ParseItem
from trainyard.data.limited.service import parse_limited
from trainyard.data.rows import ROWS_FILE, Message, PreferenceRow, Row, SftRow, write_rows
from trainyard.errors import Conflict, Corrupt, NotFound
from trainyard.spec.chain import canonical_json
from trainyard.spec.night import BUCKET_PORTS
from trainyard.stores.files import Files, RealFiles, make_folders, translate_os_errors
from trainyard.stores.whole import create_whole

MOST_LINE_BYTES = 4_000_000
MIN_HELD_OUT = 10
"""The gate needs six independent cases for 95 % confidence."""
CHARS_PER_TOKEN, LEAST_DIFF_CHARS = 2, 40
"""Of source code and small vocabularies; prose has four characters a token."""
HELDOUT_FILE = "heldout/heldout.arrow"
ASK = "Describe this change as its commit message would."


@dataclass(frozen=True)
class CorpusTuple:
    """A valid tuple in its canonical spelling; `digest` is that of its meaning."""

    digest: str
    value: Value


@dataclass(frozen=True)
class Invalid:
    """A line that is not a valid tuple, and why."""

    line: int
    reason: str


@dataclass(frozen=True)
class BucketReading:
    """A bucket as it is now."""

    tuples: tuple[CorpusTuple, ...]
    invalid: tuple[Invalid, ...] = ()
    duplicates: int = 0

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(example.digest for example in self.tuples)

    def new_since(self, trained: frozenset[str]) -> int:
        """Return how many tuples no completed training has had."""
        return sum(example.digest not in trained for example in self.tuples)


@dataclass(frozen=True)
class CorpusSnapshot:
    """An immutable copy of a bucket."""

    sha256: str
    rows: int
    path: Path


class Corpora:
    """The buckets below one folder. `root` belongs to one tenant; names of buckets are checked by the config."""

    def __init__(self, root: Path, files: Files | None = None, parse: Parse = parse_limited) -> None:
        self.root, self.files, self.parse = root, files or RealFiles(), parse

    def file(self, bucket: str) -> Path:
        return self.root / f"{bucket}.jsonl"

    def add(self, bucket: str, method: str, values: Iterable[Value]) -> tuple[int, int]:
        """Append tuples durably; returns (added, those that were there already). Appending twice adds nothing.

        Raises `InvalidInput` (`E-CORPUS`) for the first value that is not a tuple of the method, before writing.
        """
        return self.append(bucket, method, [parse_tuple(value, method) for value in values])

    def add_lines(self, bucket: str, method: str, data: bytes) -> tuple[int, int]:
        """`add` for a file with one JSON object a line."""
        numbered = self.number_tuples(data, method)
        return self.append(bucket, method, [check_entry(entry, f"line {number}: ") for number, entry in numbered])

    def append(self, bucket: str, method: str, tuples: Sequence[CorpusTuple]) -> tuple[int, int]:
        """Append tuples that are not there yet; returns (added, those that were there already)."""
        with translate_os_errors("The corpus was not written"):
            make_folders(self.files, self.root)
            with self.files.locked(self.root / f".{bucket}.lock"):
                digests = set(self.read(bucket, method).digests)
                new = {example.digest: example for example in tuples if example.digest not in digests}
                if new:
                    self.end_torn_line(bucket)
                    lines = b"".join(orjson.dumps(example.value) + b"\n" for example in new.values())
                    self.files.append(self.file(bucket), lines)
                    self.files.fsync(self.file(bucket))
                    self.files.fsync_folder(self.root)
        return len(new), len(tuples) - len(new)

    def end_torn_line(self, bucket: str) -> None:
        """A line that a crash cut off must not swallow the next one."""
        path = self.file(bucket)
        if self.files.exists(path) and self.files.size(path) and not self.files.read(path).endswith(b"\n"):
            self.files.append(path, b"\n")

    def read(self, bucket: str, method: str) -> BucketReading:
        """Return every valid tuple once, in the order of the file; a missing file is an empty bucket."""
        path = self.file(bucket)
        if not self.files.exists(path):
            return BucketReading(())
        by_digest: dict[str, CorpusTuple] = {}
        invalid: list[Invalid] = []
        duplicates = 0
        for number, entry in self.number_tuples(self.files.read(path), method):
            if isinstance(entry, str):
                invalid.append(Invalid(number, entry))
                continue
            duplicates += entry.digest in by_digest
            by_digest.setdefault(entry.digest, entry)
        return BucketReading(tuple(by_digest.values()), tuple(invalid), duplicates)

    def number_tuples(self, data: bytes, method: str) -> list[tuple[int, CorpusTuple | str]]:
        """(number, tuple) of each line that is not blank, or why it is none."""
        lines = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
        short = [ParseItem(line, method) for _, line in lines if len(line) <= MOST_LINE_BYTES]
        parsed = iter([item.unreadable or with_digest(item.value) for item in self.parse(short)])
        too_long = f"the line has {{:,}} bytes; at most {MOST_LINE_BYTES:,} are read"
        sized = ((number, len(line)) for number, line in lines)
        return [(number, next(parsed) if n <= MOST_LINE_BYTES else too_long.format(n)) for number, n in sized]

    def snapshot(self, bucket: str, reading: BucketReading) -> CorpusSnapshot:
        """Keep the valid tuples under their digest; the same tuples give the same snapshot."""
        data = b"".join(canonical_json(example.value) + b"\n" for example in reading.tuples)
        sha256 = hashlib.sha256(data).hexdigest()
        return CorpusSnapshot(sha256, len(reading.tuples), self.keep(bucket, sha256, data))

    def keep(self, bucket: str, sha256: str, data: bytes) -> Path:
        """Keep a snapshot, which may come from elsewhere, after a check of its digest. Raises `Corrupt`."""
        path = self.snapshot_file(bucket, sha256)
        verify_bytes(path, data, sha256)
        with translate_os_errors("The snapshot was not written"):
            make_folders(self.files, path.parent)
            try:
                create_whole(self.files, path, data)
            except Conflict:
                verify_bytes(path, self.files.read(path), sha256)
        return path

    def snapshot_file(self, bucket: str, sha256: str) -> Path:
        return self.root / "snapshots" / bucket / f"{sha256}.jsonl"

    def read_snapshot(self, bucket: str, sha256: str) -> bytes:
        """Return a snapshot's bytes, verified. Raises `NotFound` (`E-NOT-FOUND`), `Corrupt` (`E-CORRUPT`)."""
        path = self.snapshot_file(bucket, sha256)
        if not self.files.exists(path):
            raise NotFound(
                f"There is no snapshot {sha256[:12]} of the bucket {bucket}.",
                do="Copy it from where the marker was made, or remove the marker: the next night makes another.",
                code="E-NOT-FOUND",
            )
        return verify_bytes(path, self.files.read(path), sha256)

    def open(self, bucket: str, method: str, sha256: str) -> list[CorpusTuple]:
        """Return the tuples of a snapshot."""
        return [check_entry(entry) for _, entry in self.number_tuples(self.read_snapshot(bucket, sha256), method)]


def verify_bytes(path: Path, data: bytes, sha256: str) -> bytes:
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Corrupt(
            f"The snapshot {path.name[:12]} has other bytes than its name says.",
            why="It was changed after it was written, or it was copied incompletely.",
            do="Move it away; the next night makes another.",
            code="E-CORRUPT",
        )
    return data


def with_digest(value: Value) -> CorpusTuple:
    return CorpusTuple(hashlib.sha256(canonical_json(value)).hexdigest(), value)


def check_entry(entry: CorpusTuple | str, where: str = "") -> CorpusTuple:
    """Raises `InvalidInput` (`E-CORPUS`) for a line that is not a tuple."""
    if isinstance(entry, str):
        raise bad(f"{where}{entry}")
    return entry


def parse_tuple(value: object, method: str) -> CorpusTuple:
    """Return a value in its one spelling. Raises `InvalidInput` (`E-CORPUS`) with the reason."""
    return with_digest(spell(value, method))


# Towards training


def build_rows(tuples: Iterable[CorpusTuple], method: str, most_chars: int = MOST_CHARS) -> Iterator[Row]:
    """Yield the tuples as rows that a trainer reads."""
    for example in tuples:
        yield sft_row(example, most_chars) if method == "sft" else preference_row(example)


def sft_row(example: CorpusTuple, most_chars: int = MOST_CHARS) -> SftRow:
    """A commit as a question and its answer. A diff that is too long is cut at a line's end: the answer comes last in
    the row, and a trainer that cuts the row would cut it off."""
    value = example.value
    if "messages" in value:
        messages = [Message(turn["role"], turn["content"]) for turn in value["messages"]]
    else:
        # What is the same in every row comes first, so that a served prompt of this shape is a prefix that is cached.
        brief = f"\n\nReview brief:\n{value['brief']}" if "brief" in value else ""
        room = max(LEAST_DIFF_CHARS, most_chars - len(ASK) - len(brief) - len(value["message"]))
        question = f"{ASK}{brief}\n\n{cut(value['diff'], room)}"
        messages = [Message("user", question), Message("assistant", value["message"])]
    return SftRow(messages, example.digest[:16], example.digest[:16])


def cut(diff: str, most_chars: int) -> str:
    """Return the first whole lines of a diff that fit, and a mark that there was more."""
    if len(diff) <= most_chars:
        return diff
    head = diff[:most_chars]
    return f"{head[: head.rfind(chr(10))] if chr(10) in head else head}\n…"


def preference_row(example: CorpusTuple) -> PreferenceRow:
    value = example.value
    prompt = value["prompt"]
    question = [Message("user", prompt)] if isinstance(prompt, str) else [Message(**turn) for turn in prompt]
    chosen, rejected = [Message("assistant", value["verdict"])], [Message("assistant", value["shadow"])]
    return PreferenceRow(question, chosen, rejected, example.digest[:16], example.digest[:16])


def split_held_out(tuples: list[CorpusTuple], share: float) -> tuple[list[CorpusTuple], list[CorpusTuple]]:
    """(to train on, for the gate alone): those with the smallest digests stay apart, at least `MIN_HELD_OUT`.

    Digests decide, not the order, so that a tuple is on the same side night after night: as a corpus grows, tuples
    leave the side of the gate, and those that were trained on rarely move to it.
    """
    if share == 0:
        return tuples, []
    count = max(min(MIN_HELD_OUT, len(tuples) // 3), int(share * len(tuples)))
    apart = {example.digest for example in sorted(tuples, key=lambda example: example.digest)[:count]}
    return [example for example in tuples if example.digest not in apart], [
        example for example in tuples if example.digest in apart
    ]


def write_training_set(
    tuples: list[CorpusTuple], method: str, folder: Path, share: float, max_length: int = MOST_CHARS
) -> dict[str, int]:
    """`rows.arrow` and `heldout/heldout.arrow` of a snapshot; returns how many rows each has.

    `max_length` is the trainer's, in tokens; prompts are kept to twice as many characters, which fit.
    """
    train, apart = split_held_out(tuples, share)
    chars = CHARS_PER_TOKEN * max_length
    count = write_rows(folder / ROWS_FILE, BUCKET_PORTS[method], build_rows(train, method, chars))
    aside = write_rows(folder / HELDOUT_FILE, BUCKET_PORTS[method], build_rows(apart, method, chars)) if apart else 0
    return {"train": count, "heldout": aside}
