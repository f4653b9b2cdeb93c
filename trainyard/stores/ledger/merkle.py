"""Merkle trees of RFC 6962 and RFC 9162: roots, proofs of inclusion, proofs of consistency, and their checks.

A leaf is hashed with the byte 0 before it, a node with the byte 1: no leaf can pass for a node. Every function takes
the leaf hashes, or a function that returns the hash of a whole subtree, so that a large log reads only its tiles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()
SubtreeHash = Callable[[int, int], bytes]
"""(level, index) -> hash of the `2**level` leaves from `index * 2**level` on."""


def hash_leaf(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def hash_node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def split_size(size: int) -> int:
    """Return the largest power of two below `size`: the leaves of the left subtree."""
    return 1 << ((size - 1).bit_length() - 1)


def range_root(start: int, size: int, subtree: SubtreeHash) -> bytes:
    """Return the root of `size` leaves from `start` on, a position at which such a subtree of a larger tree begins."""
    if size == 0:
        return EMPTY_ROOT
    if size & (size - 1) == 0:
        level = size.bit_length() - 1
        return subtree(level, start >> level)
    left = split_size(size)
    return hash_node(range_root(start, left, subtree), range_root(start + left, size - left, subtree))


def subtree_of(leaves: Sequence[bytes]) -> SubtreeHash:
    """Return the subtree hashes of leaf hashes in memory."""

    def subtree(level: int, index: int) -> bytes:
        if level == 0:
            return leaves[index]
        return hash_node(subtree(level - 1, 2 * index), subtree(level - 1, 2 * index + 1))

    return subtree


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root of leaf hashes."""
    return range_root(0, len(leaves), subtree_of(leaves))


def prove_inclusion(index: int, size: int, subtree: SubtreeHash) -> list[bytes]:
    """Return the siblings of a leaf from the bottom to the top, for a tree of `size` leaves."""
    assert 0 <= index < size, "a leaf of the tree"

    def path(start: int, index: int, size: int) -> list[bytes]:
        if size == 1:
            return []
        left = split_size(size)
        if index < left:
            return [*path(start, index, left), range_root(start + left, size - left, subtree)]
        return [*path(start + left, index - left, size - left), range_root(start, left, subtree)]

    return path(0, index, size)


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Return whether a leaf hash is at `index` of the tree with this size and root (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size or len(leaf) != HASH_BYTES:
        return False
    node, last, digest = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            digest = hash_node(sibling, digest)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            digest = hash_node(digest, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and digest == root


def prove_consistency(first: int, size: int, subtree: SubtreeHash) -> list[bytes]:
    """Return the proof that the tree of `size` leaves begins with the tree of its first `first` leaves."""
    assert 0 <= first <= size, "an earlier size of the tree"

    def path(start: int, first: int, size: int, whole: bool) -> list[bytes]:
        if first == size:
            return [] if whole else [range_root(start, size, subtree)]
        left = split_size(size)
        if first <= left:
            return [*path(start, first, left, whole), range_root(start + left, size - left, subtree)]
        return [*path(start + left, first - left, size - left, False), range_root(start, left, subtree)]

    return path(0, first, size, True) if first else []


def verify_consistency(first: int, size: int, first_root: bytes, root: bytes, proof: Sequence[bytes]) -> bool:
    """Return whether the tree (`size`, `root`) begins with the tree (`first`, `first_root`) (RFC 9162, 2.1.4.2)."""
    if first > size or (first == size and first_root != root):
        return False
    if first in (0, size):
        return not proof and (first != 0 or first_root == EMPTY_ROOT)
    hashes = [first_root, *proof] if first & (first - 1) == 0 else [*proof]
    if not hashes or not proof:
        return False
    node, last = first - 1, size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old = new = hashes[0]
    for sibling in hashes[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            old, new = hash_node(sibling, old), hash_node(sibling, new)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            new = hash_node(new, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and old == first_root and new == root
