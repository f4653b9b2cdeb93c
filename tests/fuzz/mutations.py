"""Inputs out of seeds: each is a function of (seed, number), so a finding is replayed by its two numbers."""

from __future__ import annotations

import gzip
import io
import random
import re
import zipfile
from collections.abc import Callable

NUMBER = re.compile(rb"\d{1,20}")
HUGE = (b"0", b"-1", b"1e999", b"300000", b"100000000", b"99999999999999999999", b"NaN", b"2147483648")
TOKENS = tuple(
    token.encode()
    for token in (
        *("# ", "## a", "```", "```x\n", "~~~", "---\n", "===", "\n\n", "\t", " ", "title: ", "<div>", "</p>", "<pre>"),
        *("<meta charset=", "<!--", "<![CDATA[", "&#x110000;", "\0", "\ufeff", "\ufffd", "\r", "\u2028", "{", "}", "["),
        *("]", '"', "\\u0000", "\\ud800", ",", ":", "null", "[[[[", "- ", "&a ", "*a", "!!python/object:x", "|\n", ">"),
        *("stream\n", "endobj", "/Type /Page", "/Kids [1 0 R]", "<< ", ">>", '{"role":"user","content":"x"}', ";"),
    )
)
MOST_BYTES = 1 << 20
Mutate = Callable[[random.Random, bytes], bytes]


def choose_offset(chance: random.Random, data: bytes) -> int:
    return chance.randint(0, len(data))


def piece(chance: random.Random, data: bytes, most: int) -> tuple[int, int]:
    start = choose_offset(chance, data)
    return start, min(len(data), start + chance.randint(1, most))


def change_byte(chance: random.Random, data: bytes) -> bytes:
    at = choose_offset(chance, data)
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def drop_piece(chance: random.Random, data: bytes) -> bytes:
    start, end = piece(chance, data, 64)
    return data[:start] + data[end:]


def cut_off(chance: random.Random, data: bytes) -> bytes:
    return data[: choose_offset(chance, data)]


def insert_token(chance: random.Random, data: bytes) -> bytes:
    at = choose_offset(chance, data)
    return data[:at] + chance.choice(TOKENS) + data[at:]


def repeat_token(chance: random.Random, data: bytes) -> bytes:
    at = choose_offset(chance, data)
    return data[:at] + chance.choice(TOKENS) * chance.choice((30, 300, 3000, 30_000)) + data[at:]


def repeat_piece(chance: random.Random, data: bytes) -> bytes:
    start, end = piece(chance, data, 40)
    return data[:end] + data[start:end] * chance.choice((2, 30, 300, 3000)) + data[end:]


def fill_gap(chance: random.Random, data: bytes) -> bytes:
    """Many spaces where there is one: what patterns that backtrack are slow on."""
    gaps = [at for at in range(len(data)) if data[at : at + 1].isspace()]
    at = chance.choice(gaps) if gaps else choose_offset(chance, data)
    return data[:at] + chance.choice((b" ", b"\t", b"\n")) * chance.choice((300, 3000, 30_000)) + data[at:]


def change_number(chance: random.Random, data: bytes) -> bytes:
    matches = list(NUMBER.finditer(data))
    if not matches:
        return insert_token(chance, data)
    match = chance.choice(matches)
    return data[: match.start()] + chance.choice(HUGE) + data[match.end() :]


def swap_pieces(chance: random.Random, data: bytes) -> bytes:
    start, end = piece(chance, data, 80)
    at = choose_offset(chance, data)
    return data[:at] + data[start:end] + data[at:]


MUTATIONS: tuple[Mutate, ...] = (
    change_byte, drop_piece, cut_off, insert_token, repeat_token, repeat_piece, fill_gap, change_number, swap_pieces,
)  # fmt: skip


def mutate(chance: random.Random, data: bytes) -> bytes:
    """The data with one to five changes, at most 1 MiB."""
    for _ in range(chance.randint(1, 5)):
        data = chance.choice(MUTATIONS)(chance, data)[:MOST_BYTES]
    return data


def mutate_archive(chance: random.Random, data: bytes) -> bytes:
    """A zip file in which one member was changed."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        member_name = chance.choice(archive.namelist())
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as changed:
            for name in archive.namelist():
                member = archive.read(name)
                changed.writestr(name, mutate(chance, member) if name == member_name else member)
    return stream.getvalue()


def mutate_gzip(chance: random.Random, data: bytes) -> bytes:
    return gzip.compress(mutate(chance, gzip.decompress(data)), mtime=0)


INSIDE: dict[str, Mutate] = {".docx": mutate_archive, ".gz": mutate_gzip}
"""File name extension -> how the content is changed; half of the inputs are changed as bytes instead."""


def make_input(seeds: list[tuple[str, bytes]], seed: int, number: int) -> tuple[str, bytes]:
    """(name, data) of input `number`; the first inputs are the seeds themselves."""
    if number < len(seeds):
        return seeds[number]
    chance = random.Random(f"{seed}:{number}")
    name, data = chance.choice(seeds)
    inside = INSIDE.get(f".{name.rpartition('.')[2]}")
    return name, inside(chance, data) if inside and chance.random() < 0.5 else mutate(chance, data)
