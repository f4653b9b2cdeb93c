"""Trees and proofs against the vectors of Certificate Transparency, and each size up to 64."""

from __future__ import annotations

import hashlib

import pytest

from trainyard.stores.ledger.merkle import (
    EMPTY_ROOT,
    hash_leaf,
    prove_consistency,
    prove_inclusion,
    subtree_of,
    tree_root,
    verify_consistency,
    verify_inclusion,
)
from trainyard.stores.ledger.notes import parse_note, parse_vkey
from trainyard.stores.ledger.tiles import Tile, list_tiles

LEAVES = [
    hash_leaf(bytes.fromhex(text))
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
"""Of the trees of the first 1 to 8 leaves (certificate-transparency, merkletree tests)."""
MANY = [hash_leaf(number.to_bytes(2, "big")) for number in range(64)]


def test_roots_are_those_of_the_vectors() -> None:
    assert [tree_root(LEAVES[:size]).hex() for size in range(1, 9)] == list(ROOTS)
    assert tree_root([]) == EMPTY_ROOT == hashlib.sha256(b"").digest()


@pytest.mark.parametrize("size", range(1, 65))
def test_every_leaf_is_proven_and_nothing_else(size: int) -> None:
    root, subtree = tree_root(MANY[:size]), subtree_of(MANY)
    for index in range(size):
        proof = prove_inclusion(index, size, subtree)
        assert verify_inclusion(MANY[index], index, size, proof, root)
        other = (index + 1) % size if size > 1 else 1
        wrong = [
            verify_inclusion(MANY[(index + 1) % 64], index, size, proof, root),
            verify_inclusion(MANY[index], other, size, proof, root),
            verify_inclusion(MANY[index], index, size, [*proof, root], root),
            verify_inclusion(MANY[index], index, size, proof, MANY[index] if size > 1 else MANY[1]),
            *(verify_inclusion(MANY[index], index, size, flip(proof, at), root) for at in range(len(proof))),
            *(verify_inclusion(MANY[index], index, size, proof[:at], root) for at in range(len(proof))),
        ]
        assert not any(wrong)


@pytest.mark.parametrize("size", range(1, 65))
def test_every_beginning_is_proven_and_nothing_else(size: int) -> None:
    root, subtree = tree_root(MANY[:size]), subtree_of(MANY)
    for first in range(1, size + 1):
        proof, before = prove_consistency(first, size, subtree), tree_root(MANY[:first])
        assert verify_consistency(first, size, before, root, proof)
        assert not verify_consistency(first, size, MANY[0] if first > 1 else MANY[1], root, proof)
        assert not verify_consistency(first, size, before, MANY[63], proof)
        assert not any(verify_consistency(first, size, before, root, flip(proof, at)) for at in range(len(proof)))
        assert not verify_consistency(first, size, before, root, [*proof, root])


def flip(proof: list[bytes], at: int) -> list[bytes]:
    return [*proof[:at], bytes([proof[at][0] ^ 1]) + proof[at][1:], *proof[at + 1 :]]


def test_a_signed_note_of_the_go_library_verifies() -> None:
    key = parse_vkey("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    text = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
    signature = (
        "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
    )
    assert parse_note(f"{text}\n{signature}".encode()).is_signed_by(key)
    assert not parse_note(f"{text.replace('your', 'our')}\n{signature}".encode()).is_signed_by(key)


def test_tiles_are_those_of_the_specification() -> None:
    tiles = list(list_tiles(70_000))
    widths = {(tile.level, tile.width) for tile in tiles}
    assert widths == {("entries", 256), ("entries", 112), ("0", 256), ("0", 112), ("1", 256), ("1", 17), ("2", 1)}
    assert sum(tile.level == "0" and tile.width == 256 for tile in tiles) == 273
    assert Tile("0", 1_234_067, 256).path == "tile/0/x001/x234/067"
    assert Tile("1", 0, 1).path == "tile/1/000.p/1"
