"""Several sets as one, by weight: how many rows of each, which ones, in which order. All of it follows from the seed.

The mixture is written once, as the result of the data source, so a trainer that is stopped and resumed reads the same
rows in the same order. Counts are exact: no set is further from its share than one row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from trainyard.data.rows import BATCH_ROWS, ROWS_FILE, SCHEMAS
from trainyard.json_types import JsonObject
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import Mixture


@dataclass(frozen=True)
class Share:
    """Part of one set in the mixture."""

    name: str
    weight: float
    available: int
    """Good rows that were read."""
    count: int
    """Rows of the mixture that come from it, each as often as it was taken."""
    most: int
    """Rows that it could give: `available` times `max_epochs`."""

    @property
    def facts(self) -> JsonObject:
        return {
            "weight": self.weight, "available": self.available, "rows": self.count,
            "epochs": round(self.count / self.available, 4) if self.available else 0.0,
            "exhausted": self.count == self.most,
        }  # fmt: skip


def share_rows(mix: Mixture, available: Mapping[str, int]) -> list[Share]:
    """Return how many rows each set gives.

    With `exhausted: stop` all sets keep their proportion, and the mixture ends where the first set has no more rows.
    With `continue` such a set gives all it has, and the others share the rest by their weights.
    """
    weights = {name: source.weight for name, source in mix.sets.items()}
    most = {name: available[name] * source.max_epochs for name, source in mix.sets.items()}
    whole = sum(weights.values())
    total = sum(most.values()) if mix.rows is None else min(mix.rows, sum(most.values()))
    if mix.exhausted == "stop":
        total = min(total, *(math.floor(most[name] * whole / weights[name] * (1 + 1e-12)) for name in weights))
    counts: dict[str, int] = {}
    left = dict(weights)
    while left:  # those that have too few rows give all; the others share what is left
        rest, sum_left = total - sum(counts.values()), sum(left.values())
        short = [name for name, weight in left.items() if most[name] < math.floor(rest * weight / sum_left)]
        for name in short:
            counts[name] = most[name]
            del left[name]
        if not short:
            counts |= round_shares({name: rest * weight / sum_left for name, weight in left.items()}, rest, most)
            break
    return [Share(name, weights[name], available[name], counts[name], most[name]) for name in weights]


def round_shares(exact: Mapping[str, float], total: int, most: Mapping[str, int]) -> dict[str, int]:
    """Whole numbers with the sum `total`: the largest remainders are rounded up (Hamilton's method)."""
    counts = {name: min(most[name], math.floor(value + 1e-9)) for name, value in exact.items()}
    order = sorted(exact, key=lambda name: counts[name] - exact[name])
    while (missing := total - sum(counts.values())) > 0:
        grown = [name for name in order if counts[name] < most[name]][:missing]
        for name in grown:
            counts[name] += 1
    return counts


def draw_rows(shares: Sequence[Share], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(number of the set, number of the row in it) of each row of the mixture, in its order.

    Each set gives whole epochs in a new order each, then a part of one.
    """
    set_numbers, rows = [], []
    for number, share in enumerate(shares):
        generator = np.random.default_rng((seed, number))
        epochs = math.ceil(share.count / max(1, share.available))
        orders = [generator.permutation(share.available) for _ in range(epochs)]
        rows.append(np.concatenate([*orders, np.empty(0, np.int64)])[: share.count].astype(np.int64))
        set_numbers.append(np.full(share.count, number, np.int32))
    order = np.random.default_rng((seed, len(shares))).permutation(sum(map(len, rows)))
    # The order in which sets take turns is drawn; each set's own order is the drawn one of its epochs.
    turns = np.concatenate(set_numbers)[order]
    mixed = np.empty(len(turns), np.int64)
    for number, set_rows in enumerate(rows):
        mixed[turns == number] = set_rows
    return turns, mixed


def write_mixture(mix: Mixture, folders: Mapping[str, Path], port: Port, target: Path) -> tuple[list[Share], int]:
    """Write the rows of the sets in `folders` as one set. Returns the shares, and how many different rows it has.

    `source` of a row begins with the name of its set: `chats/rows.jsonl:17`.
    """
    tables = {name: open_rows(folder / ROWS_FILE) for name, folder in folders.items()}
    shares = share_rows(mix, {name: table.num_rows for name, table in tables.items()})
    turns, rows = draw_rows(shares, mix.seed)
    starts = np.cumsum([0, *(table.num_rows for table in tables.values())])
    together = pa.concat_tables(tables.values())
    indices = starts[turns] + rows
    target.mkdir(parents=True)
    with ipc.new_file(target / ROWS_FILE, SCHEMAS[port]) as writer:
        for batch in select_batches(together, indices, turns, [share.name for share in shares]):
            writer.write_table(batch)
    return shares, len(np.unique(indices))


def open_rows(path: Path) -> pa.Table:
    """Return the rows of a file, mapped into memory and not copied."""
    return ipc.open_file(pa.memory_map(str(path))).read_all()


def select_batches(table: pa.Table, indices: np.ndarray, turns: np.ndarray, names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the chosen rows, with the name of their set in front of their source."""
    set_names = pa.array(names, pa.string())
    column = table.schema.get_field_index("source")
    for first in range(0, len(indices), BATCH_ROWS):
        piece = table.take(pa.array(indices[first : first + BATCH_ROWS])).combine_chunks()
        prefix = set_names.take(pa.array(turns[first : first + BATCH_ROWS]))
        source = pc.binary_join_element_wise(prefix, piece.column("source"), "/")
        yield piece.set_column(column, table.schema.field(column), source)


def count_by_set(sources: pa.Array, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Name of a set -> which of these rows are from it."""
    return {name: np.asarray(pc.starts_with(sources, f"{name}/")) for name in names}
