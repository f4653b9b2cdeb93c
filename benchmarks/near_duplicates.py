"""How fast are near-duplicates found among 100,000 rows, and how well, beside datasketch?

Rows have 40 to 100 words of a Zipf-distributed vocabulary. 10 % of them are copies of an earlier row: half with one
word exchanged (true near-duplicates, where the exact Jaccard similarity of word pairs is at least 0.9), half with
every eighth word exchanged (hard negatives, about 0.6 to 0.8). A row counts as a duplicate by its exact similarity.

The peer is used as its manual shows: a MinHash of 128 values of the row's word pairs, `MinHashLSH` at 0.9, and a
check of the estimated similarity of every candidate. Both start from the texts: ours from Arrow strings, as the
validator has them, the peer from Python strings.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pyarrow as pa
from datasketch import MinHash, MinHashLSH

from benchmarks.harness import Row, alternate, finish, median, size
from trainyard.data.quality.duplicates import Shingles
from trainyard.data.quality.words import split_words
from trainyard.data.rows import BATCH_ROWS

ROWS = size(100_000, 2_000)
THRESHOLD = 0.9
WORD = re.compile(r"[^\W_]+")


def word_pairs(text: str) -> set[str]:
    return {f"{first} {second}" for first, second in pairwise(WORD.findall(text.lower()))}


def corpus(count: int) -> tuple[list[str], set[int]]:
    """The rows, and the indices of those that repeat an earlier one by exact similarity."""
    chance = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(chance.choices(letters, k=chance.randint(2, 10))) for _ in range(30_000)]
    weights = [1 / (rank + 10) for rank in range(len(vocabulary))]
    draw = partial(chance.choices, vocabulary, weights)
    texts: list[str] = []
    duplicates: set[int] = set()
    for index in range(count):
        if index % 10 or not index:
            texts.append(" ".join(draw(k=chance.randint(40, 100))).capitalize() + ".")
            continue
        original = texts[chance.randrange(1, index) // 10 * 10 + 1 if index > 20 else 1]
        tokens = original.split()
        step = len(tokens) if index % 20 else 8
        for position in range(chance.randrange(step), len(tokens), step):
            tokens[position] = draw(k=1)[0]
        texts.append(" ".join(tokens))
        first_pairs, second_pairs = word_pairs(original), word_pairs(texts[-1])
        if len(first_pairs & second_pairs) / len(first_pairs | second_pairs) >= THRESHOLD:
            duplicates.add(index)
    return texts, duplicates


def run_ours(blocks: list[pa.Array], duplicates: set[int]) -> float:
    shingles = Shingles()
    for block in blocks:
        shingles.add_words(split_words(block))
    duplicates.clear()
    duplicates.update(shingles.near_duplicates(THRESHOLD))
    return sum(map(len, blocks))


def run_datasketch(texts: list[str], duplicates: set[int]) -> float:
    index = MinHashLSH(threshold=THRESHOLD, num_perm=128)
    signatures: dict[int, MinHash] = {}
    duplicates.clear()
    for number, text in enumerate(texts):
        signature = MinHash(num_perm=128)
        signature.update_batch([pair.encode() for pair in word_pairs(text)])
        if any(signature.jaccard(signatures[other]) >= THRESHOLD for other in index.query(signature)):
            duplicates.add(number)
            continue
        index.insert(number, signature)
        signatures[number] = signature
    return len(texts)


def f1(duplicates: set[int], true: set[int]) -> float:
    return 2 * len(duplicates & true) / (len(duplicates) + len(true))


def main(count: int = ROWS) -> int:
    texts, true = corpus(count)
    blocks = [pa.array(texts[start : start + BATCH_ROWS], pa.string()) for start in range(0, count, BATCH_ROWS)]
    duplicates: dict[str, set[int]] = {"ours": set(), "datasketch": set()}
    variants: dict[str, Callable[[], float]] = {
        "ours": lambda: run_ours(blocks, duplicates["ours"]),
        "datasketch": lambda: run_datasketch(texts, duplicates["datasketch"]),
    }
    samples = alternate(variants, rounds=5)
    rate = {name: median(samples[name], "per_cpu_second") for name in variants}
    quality = {name: f1(duplicates[name], true) for name in variants}
    difference = quality["ours"] - quality["datasketch"]
    rows = [
        Row.ratio_at_least("rows per CPU second", rate["ours"], rate["datasketch"], "datasketch", 20),
        Row(
            "F1 on planted duplicates, difference", quality["ours"], quality["datasketch"], "datasketch",
            difference, -0.005, ">=", difference >= -0.005,
        ),
    ]  # fmt: skip
    return finish("near_duplicates", rows, samples)


if __name__ == "__main__":
    sys.exit(main())
