"""Sealed files: what comes back, what does not open, and what nobody can read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from trainyard.errors import Corrupt, InvalidInput
from trainyard.train.checkpoint.checkpoints import find_damage, newest_valid
from trainyard.train.checkpoint.cipher import PIECE_BYTES, TAG_BYTES, CheckpointCipher
from trainyard.train.checkpoint.streams import SEALED, is_sealed, read_bytes, write_bytes
from trainyard.train.checkpoint.writer import CheckpointWriter, load_checkpoint

SECRET = "k" * 32
HEAD = len(SEALED) + 16


@pytest.fixture
def cipher() -> CheckpointCipher:
    return CheckpointCipher(SECRET)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_what_was_sealed_comes_back_and_the_digest_is_of_the_disk(
    size: int, cipher: CheckpointCipher, tmp_path: Path
) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data, path = data[:size], tmp_path / "file"
    digest = write_bytes(path, data, cipher)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert is_sealed(path)
    assert read_bytes(path, cipher) == data
    pieces = max(1, -(-size // PIECE_BYTES))
    assert path.stat().st_size == HEAD + size + pieces * TAG_BYTES


def test_a_sealed_file_has_no_byte_of_the_text_and_two_of_one_text_differ(
    cipher: CheckpointCipher, tmp_path: Path
) -> None:
    for name in "ab":
        write_bytes(tmp_path / name, b"the secret weights", cipher)
    first, second = (tmp_path / name for name in "ab")
    assert b"secret" not in first.read_bytes()
    assert first.read_bytes() != second.read_bytes()


def test_another_key_or_none_does_not_open_it(cipher: CheckpointCipher, tmp_path: Path) -> None:
    write_bytes(tmp_path / "file", b"text", cipher)
    for sealer in (None, CheckpointCipher("x" * 32)):
        with pytest.raises(Corrupt, match="E-CHECKPOINT-MISMATCH"):
            read_bytes(tmp_path / "file", sealer)


@pytest.mark.parametrize("change", ["flip", "cut", "swap", "salt"])
def test_a_changed_file_does_not_open(change: str, cipher: CheckpointCipher, tmp_path: Path) -> None:
    path, size = tmp_path / "file", PIECE_BYTES + TAG_BYTES
    write_bytes(path, b"0" * PIECE_BYTES + b"1" * PIECE_BYTES + b"2", cipher)
    data = bytearray(path.read_bytes())
    if change == "flip":
        data[-1] ^= 1
    elif change == "cut":  # at the border of two pieces
        del data[HEAD + size :]
    elif change == "swap":
        data[HEAD : HEAD + size], data[HEAD + size : HEAD + 2 * size] = (
            data[HEAD + size : HEAD + 2 * size], data[HEAD : HEAD + size],
        )  # fmt: skip
    else:
        data[len(SEALED)] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(Corrupt, match="cannot be decrypted"):
        read_bytes(path, cipher)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="E-PARAMETER: The key of the checkpoints has 31 characters"):
        CheckpointCipher("k" * 31)


def test_a_sealed_checkpoint_is_verified_without_its_key_and_loaded_with_it(
    cipher: CheckpointCipher, tmp_path: Path
) -> None:
    tensors = {"state/weights": torch.arange(10.0)}
    with CheckpointWriter(tmp_path) as writer:
        writer.sealer = cipher
        writer.save(3, tensors, {"text": "a drawn completion"})
    checkpoint = newest_valid(tmp_path)
    assert checkpoint.path is not None
    assert find_damage(checkpoint.path) is None
    assert not [path for path in checkpoint.path.iterdir() if b"completion" in path.read_bytes()]
    loaded, values = load_checkpoint(checkpoint.path, sealer=cipher)
    assert torch.equal(loaded["state/weights"], tensors["state/weights"])
    assert values == {"text": "a drawn completion"}
    with pytest.raises(Corrupt, match="E-CHECKPOINT-MISMATCH"):
        load_checkpoint(checkpoint.path)


def test_a_checkpoint_of_before_the_key_is_read(cipher: CheckpointCipher, tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path) as writer:
        writer.save(1, {"state/weights": torch.ones(2)}, {"a": 1})
    checkpoint = newest_valid(tmp_path)
    assert checkpoint.path is not None
    assert load_checkpoint(checkpoint.path, sealer=cipher)[1] == {"a": 1}
