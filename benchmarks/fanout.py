"""Does a validator in pieces on Dask or Ray leave the bytes of one process, and what does it cost or save?

A million rows by rule (a question of 6 words, an answer of 10 to 26, words of a Zipf-distributed vocabulary; of twenty
rows one repeats an earlier row, and one has it with another last word) go through the default validator: in one
process as it is and with one thread of the tokenizer, and in pieces on two processes, two workers of a local Dask and
two of a local Ray, started and stopped within the time. A Prefect server records the pieces, as in a run.

On one host two workers share its cores with nobody; one process has them, too, for the step that takes most time, the
tokenizer. What the workers of more hosts add is not measured here.

    python -m benchmarks.fanout
    python -m benchmarks.fanout dask ray        # these alone: digests to compare, and no bar
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from prefect import flow, task
from pyarrow import ipc

from benchmarks.harness import Row, finish, measure, size
from trainyard.app.services import service_environment, start_server, stop
from trainyard.callbacks import ignore
from trainyard.data.pieces.rows import sift_in_pieces
from trainyard.data.rows import BATCH_ROWS, ROWS_FILE, SCHEMAS, join_turns
from trainyard.data.validation import load_token_counter, validate
from trainyard.prefect_api.fan_out import PrefectFanOut
from trainyard.settings import FanOutSettings, Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import ValidatorConfig
from trainyard.stores.artifacts import Reference
from trainyard.stores.models import SHIPPED_STARTER

ROWS = size(1_000_000, 4_000)
BATCH = size(BATCH_ROWS, 500)
WORKERS, PIECES = 2, 8
ASKED, LEAST, MOST = 6, 10, 26
"""Words of a question, and the fewest and most of an answer."""
ENGINES = ("processes", "dask", "ray")
VARIANTS = ("one process", *ENGINES, "one thread")
BAR = 0.6
"""Two workers on the cores of one process may cost its share of starting a cluster and of writing twice."""


def write_rows(folder: Path) -> None:
    """Write the rows by columns: strings are never made one by one."""
    chance = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    vocabulary = pa.array(["".join(chance.choice(letters, chance.integers(2, 11))) for _ in range(30_000)])
    weights = np.cumsum(1 / (np.arange(len(vocabulary)) + 10))
    with ipc.new_file(folder / ROWS_FILE, SCHEMAS[Port.SFT]) as writer:
        for first in range(0, ROWS, BATCH):
            writer.write_batch(make_batch(first, vocabulary, weights / weights[-1], chance))


def make_batch(first: int, vocabulary: pa.Array, weights: np.ndarray, chance: np.random.Generator) -> pa.RecordBatch:
    numbers = np.arange(first, first + BATCH)
    words = np.searchsorted(weights, chance.random((BATCH, ASKED + MOST)))
    lengths = ASKED + chance.integers(LEAST, MOST + 1, BATCH)
    repeats, nearly = np.arange(BATCH) % 20 == 18, np.arange(BATCH) % 20 == 19
    for again, distance in ((repeats, 7), (nearly, 9)):
        rows = np.flatnonzero(again)
        words[rows], lengths[rows] = words[rows - distance], lengths[rows - distance]
    words[nearly, lengths[nearly] - 1] = chance.integers(0, len(vocabulary), int(nearly.sum()))
    starts = np.zeros(BATCH, np.int64)
    questions = join_words(vocabulary, words, starts, starts + ASKED)
    answers = join_words(vocabulary, words, starts + ASKED, lengths)
    turns = pa.chunked_array([questions, answers]).take(pa.array(np.arange(2 * BATCH).reshape(2, -1).T.ravel()))
    empty = pa.nulls(2 * BATCH, pa.string())
    roles = pa.array(["user", "assistant"] * BATCH)
    documents = pc.binary_join_element_wise("d", pc.cast(pa.array(numbers // 50), pa.string()), "")
    sources = pc.binary_join_element_wise("rows", pc.cast(pa.array(numbers + 1), pa.string()), ":")
    columns = [
        join_turns(np.arange(0, 2 * BATCH + 1, 2), [roles, turns.combine_chunks(), empty, empty]), documents, sources,
        pa.array(["train"] * BATCH), pa.array([""] * BATCH), pa.nulls(BATCH, pa.string()),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[Port.SFT])


def join_words(vocabulary: pa.Array, words: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> pa.Array:
    """Return one text for each row, of its words from one place to another."""
    places = np.arange(words.shape[1])
    mask = (places >= starts[:, None]) & (places < stops[:, None])
    offsets = np.concatenate([[0], np.cumsum(mask.sum(axis=1))])
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), vocabulary.take(pa.array(words[mask])))
    return pc.binary_join(lists, " ")


@contextmanager
def tokenizer_threads(several: bool) -> Iterator[None]:
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if several else "false"
    try:
        yield
    finally:
        del os.environ["TOKENIZERS_PARALLELISM"]


def run_validator(rows: Path, digests: dict[str, str], variant: str) -> float:
    """Validate the rows, and keep the digest of everything that this leaves."""
    source = Reference(uri=rows.as_uri(), sha256="", kind=Port.SFT, rows=ROWS)
    sift = None
    if variant in ENGINES:
        settings = FanOutSettings(engine=variant, workers=WORKERS, pieces=PIECES)
        sift = sift_in_pieces(PrefectFanOut(settings, "validator", print, lambda: None), SHIPPED_STARTER)
    with tempfile.TemporaryDirectory() as folder, tokenizer_threads(variant != "one thread"):
        tokens = load_token_counter(SHIPPED_STARTER)
        validate(ValidatorConfig(), source, Path(folder), tokens=tokens, report=ignore, sift=sift)
        hasher = hashlib.sha256()
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            hasher.update(path.relative_to(folder).as_posix().encode())
            with path.open("rb") as stream:
                hasher.update(hashlib.file_digest(stream, "sha256").digest())
        digests[variant] = hasher.hexdigest()
    return ROWS


@task(name="validator")
def validate_by(rows: Path, digests: dict[str, str], variant: str) -> Any:
    return measure(partial(run_validator, rows, digests, variant))


@flow(name="fanout")
def compare(rows: Path, variants: tuple[str, ...]) -> int:
    digests: dict[str, str] = {}
    samples = {}
    for variant in variants:
        sample = validate_by(rows, digests, variant)
        samples[variant] = [sample]
        rates = f"{sample.per_second:,.0f} rows a second, {sample.cpu_s:,.0f} CPU seconds here and in ended children"
        print(f"{variant}: {rates}, digest {digests[variant][:16]}", flush=True)
    if variants != VARIANTS:
        return 0 if len(set(digests.values())) == 1 else 1
    same = sum(digest == digests["one process"] for digest in digests.values())
    assert same == len(VARIANTS), digests
    one = samples["one process"][0].per_second
    rates = {name: samples[name][0].per_second for name in ENGINES}
    table = [
        Row.at_least("variants that leave the same bytes", same, len(VARIANTS)),
        *(
            Row.ratio_at_least(f"rows/s, {name}, {WORKERS} workers", rate, one, "one process", BAR)
            for name, rate in rates.items()
        ),
    ]
    return finish("fanout", table, samples)


def main(variants: tuple[str, ...]) -> int:
    """A server of its own for the measurement, then the measurement in a process that knows it."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        rows.mkdir()
        write_rows(rows)
        here = Settings(home=Path(folder) / "home", prefect_port=0)
        url = start_server(here, print).url
        environment = {**service_environment(here, url), "PREFECT_LOGGING_LEVEL": "CRITICAL"}
        try:
            return subprocess.run(
                [sys.executable, "-m", "benchmarks.fanout", "measure", str(rows), *variants],
                env=environment, check=False,
            ).returncode  # fmt: skip
        finally:
            stop(here, "server")


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        sys.exit(compare(Path(sys.argv[2]), tuple(sys.argv[3:]) or VARIANTS))
    sys.exit(main(tuple(sys.argv[1:])))
