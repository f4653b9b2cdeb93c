"""The witness over HTTP, by the rules of c2sp.org/tlog-witness."""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from trainyard.stores.ledger.anchors.witness import write_request
from trainyard.stores.ledger.log import Head, Ledger
from trainyard.stores.ledger.merkle import EMPTY_ROOT
from trainyard.stores.ledger.notes import Checkpoint, SigningKey, hash_origin, parse_note
from trainyard.stores.ledger.witnessing import MAX_REQUEST_BYTES, Witness
from trainyard.surfaces.witness import build_app

Post = Callable[[bytes], tuple[int, str]]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    log = Ledger.at_home(tmp_path / "home")
    log.append(*({"kind": "trained", "key": f"k{number}"} for number in range(4)))
    return log


@pytest.fixture
def client(ledger: Ledger, tmp_path: Path) -> TestClient:
    return TestClient(build_app(Witness(tmp_path / "witness"), [key_of(ledger).public]))


@pytest.fixture
def post(client: TestClient) -> Post:
    def post_checkpoint(body: bytes) -> tuple[int, str]:
        reply = client.post("/add-checkpoint", content=body)
        return reply.status_code, reply.text

    return post_checkpoint


def key_of(ledger: Ledger) -> SigningKey:
    key = ledger.private_key()
    assert key is not None
    return key


def grow(ledger: Ledger, *keys: str) -> Head:
    ledger.append(*({"kind": "trained", "key": key} for key in keys))
    return ledger.head()


def sign(checkpoint: Checkpoint, key: SigningKey, old: int = 0, proof: tuple[bytes, ...] = ()) -> bytes:
    """Return a request about any checkpoint, signed by any key."""
    lines = [f"old {old}", *(base64.b64encode(value).decode() for value in proof)]
    head = "\n".join(lines) + "\n\n"
    return (head + checkpoint.text + "\n" + key.signature_line(checkpoint.text)).encode()


def test_a_log_that_grows_is_cosigned(ledger: Ledger, client: TestClient, post: Post, tmp_path: Path) -> None:
    first = ledger.head()
    witness_key = Witness(tmp_path / "witness").key().public
    for head, old in ((first, 0), (first, 5), (grow(ledger, "a", "b"), 5)):
        status, line = post(write_request(head, old))
        assert head.note is not None
        assert (status, parse_note(head.note.data + line.encode()).is_signed_by(witness_key)) == (200, True)
    published = client.get(f"/{hash_origin(first.checkpoint.origin)}/checkpoint")
    note = parse_note(published.content)
    assert (note.is_signed_by(witness_key), note.is_signed_by(key_of(ledger).public)) == (True, True)
    assert note.text.splitlines()[1] == "7"
    assert client.get(f"/{hash_origin('another')}/checkpoint").status_code == 404


def test_another_old_size_is_answered_with_the_right_one(ledger: Ledger, client: TestClient, post: Post) -> None:
    post(write_request(ledger.head(), 0))
    later = grow(ledger, "a")
    for old in (0, 3, 6):
        reply = client.post("/add-checkpoint", content=write_request(later, old))
        assert (reply.status_code, reply.text, reply.headers["content-type"]) == (409, "5\n", "text/x.tlog.size")


def test_another_history_is_not_cosigned(ledger: Ledger, post: Post) -> None:
    head, key = ledger.head(), key_of(ledger)
    post(write_request(head, 0))
    origin = head.checkpoint.origin
    rewritten = Checkpoint(origin, 5, bytes(32))
    assert post(sign(rewritten, key, 5))[0] == 422, "the same size with another root"
    later = grow(ledger, "a", "b")
    request = write_request(later, 5)
    lines = request.split(b"\n")
    assert post(b"\n".join([lines[0], *lines[2:]]))[0] == 422, "a proof that lacks a hash"
    assert post(sign(Checkpoint(origin, 7, bytes(32)), key, 5, (bytes(32),)))[0] == 422
    assert post(request)[0] == 200, "refusals change nothing"


def test_a_first_checkpoint_has_no_proof(ledger: Ledger, post: Post) -> None:
    head, key = ledger.head(), key_of(ledger)
    assert post(sign(head.checkpoint, key, 0, (bytes(32),)))[0] == 422
    assert post(sign(Checkpoint(head.checkpoint.origin, 0, bytes(32)), key))[0] == 422
    assert post(sign(Checkpoint(head.checkpoint.origin, 0, EMPTY_ROOT), key))[0] == 200


def test_unknown_logs_and_wrong_signatures_are_refused(ledger: Ledger, post: Post, tmp_path: Path) -> None:
    head, key = ledger.head(), key_of(ledger)
    assert head.note is not None
    stranger = SigningKey("example.com/other", bytes(32))
    assert post(sign(Checkpoint(stranger.name, 1, bytes(32)), stranger))[0] == 404
    impostor = SigningKey(key.name, bytes(32))
    assert post(sign(head.checkpoint, impostor))[0] == 403
    forged = bytearray(head.note.data)
    text = forged.decode().rstrip("\n")
    blob = bytearray(base64.b64decode(text.rsplit(" ", 1)[1]))
    blob[-1] ^= 1
    broken = text.rsplit(" ", 1)[0] + " " + base64.b64encode(bytes(blob)).decode() + "\n"
    assert post(b"old 0\n\n" + broken.encode())[0] == 403
    both = head.note.data + impostor.signature_line(head.note.text).encode()
    assert post(b"old 0\n\n" + both)[0] == 200, "signatures of unknown keys are ignored"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda body: body.replace(b"old 0", b"old 00"), 400),
        (lambda body: body.replace(b"old 0", b"old -1"), 400),
        (lambda body: body.replace(b"old 0", b"old 9"), 400),
        (lambda body: body.replace(b"old 0\n", b"old 0\nnot base64\n"), 400),
        (lambda body: body.replace(b"old 0\n", b"old 0\n" + b"AAAA\n"), 400),
        (lambda body: body.replace(b"old 0\n", b"old 0\n" + (base64.b64encode(bytes(32)) + b"\n") * 64), 400),
        (lambda body: b"", 400),
        (lambda body: b"\xff\xfe\n\n", 400),
        (lambda body: body[:-1], 400),
        (lambda body: body + b"x" * MAX_REQUEST_BYTES, 413),
    ],
)
def test_what_is_no_request_is_refused(
    ledger: Ledger, post: Post, change: Callable[[bytes], bytes], status: int
) -> None:
    assert post(change(write_request(ledger.head(), 0)))[0] == status


def test_of_two_requests_at_once_one_is_first(ledger: Ledger, post: Post) -> None:
    """Whichever is first, no cosigned size is followed by a smaller one."""
    post(write_request(ledger.head(), 0))
    heads = [grow(ledger, f"more {number}") for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda head: post(write_request(head, 5)), heads))
    assert sorted(status for status, _ in replies) == [200, 409, 409, 409, 409, 409]
    winner = next(head.size for head, (status, _) in zip(heads, replies, strict=True) if status == 200)
    assert {text for status, text in replies if status == 409} == {f"{winner}\n"}
