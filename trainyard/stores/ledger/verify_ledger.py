"""Check a ledger's bundle without Trainyard: `python verify_ledger.py [FOLDER] [--key NAME+ID+BASE64]`.

It needs Python 3.9 and nothing else. It reads every entry below FOLDER (by default its own), computes the root of the
Merkle tree (RFC 6962), compares it with the checkpoint, and checks the checkpoint's Ed25519 signature (RFC 8032) by the
key in the file `key`, or by the one that you give: a key that you got another way is what makes the check worth much.
Then it checks every proof (`*.tlog-proof`). Exit code 0: all fits. Formats: c2sp.org/tlog-tiles, c2sp.org/signed-note.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import sys

Point = tuple[int, int, int, int]
P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def recover_x(y: int, sign: int) -> int:
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if (x * x - square) % P == 0 else x * pow(2, (P - 1) // 4, P) % P
    if y >= P or (x * x - square) % P or (x == 0 and sign):
        raise ValueError("not a point of the curve")
    return P - x if x % 2 != sign else x


def add(a: Point, b: Point) -> Point:
    (x, y, z, t), (u, v, w, s) = a, b
    m, n, o, q = (y - x) * (v - u) % P, (y + x) * (v + u) % P, 2 * t * s * D % P, 2 * z * w % P
    e, f, g, h = n - m, q - o, q + o, n + m
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(number: int, point: Point) -> Point:
    result: Point = (0, 1, 1, 0)
    while number:
        result, point, number = (add(result, point) if number & 1 else result), add(point, point), number >> 1
    return result


def decode(data: bytes) -> Point:
    number = int.from_bytes(data, "little")
    y = number & ((1 << 255) - 1)
    x = recover_x(y, number >> 255)
    return x, y, 1, x * y % P


BASE_Y = 4 * pow(5, P - 2, P) % P
BASE = (recover_x(BASE_Y, 0), BASE_Y, 1, recover_x(BASE_Y, 0) * BASE_Y % P)


def is_signed(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        point, r, s = decode(key), decode(signature[:32]), int.from_bytes(signature[32:], "little")
    except ValueError:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % L
    (x, y, z, _), (u, v, w, _) = multiply(s, BASE), add(r, multiply(h, point))
    return len(signature) == 64 and s < L and (x * w - u * z) % P == 0 and (y * w - v * z) % P == 0


def require(fits: bool, problem: str) -> None:
    if not fits:
        raise ValueError(problem)


def node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def root(leaves: list[bytes]) -> bytes:
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return node(root(leaves[:half]), root(leaves[half:]))


def proven_root(leaf: bytes, index: int, size: int, hashes: list[bytes]) -> bytes:
    if size == 1:
        return leaf
    half = 1 << (size - 1).bit_length() - 1
    if index < half:
        return node(proven_root(leaf, index, half, hashes[:-1]), hashes[-1])
    return node(hashes[-1], proven_root(leaf, index - half, size - half, hashes[:-1]))


def read_checkpoint(note: str, vkey: str) -> tuple[int, bytes]:
    text, signatures = note.rsplit("\n\n", 1)
    name, key_id, encoded = vkey.strip().split("+", 2)
    key = base64.b64decode(encoded)
    require(hashlib.sha256(name.encode() + b"\n" + key).hexdigest()[:8] == key_id, "the id does not fit the key")
    for line in signatures.splitlines():
        _, signer, signature = line.split(" ")
        data = base64.b64decode(signature)
        if (signer, data[:4].hex()) == (name, key_id) and is_signed(key[1:], data[4:], (text + "\n").encode()):
            origin, size, encoded_root = text.split("\n")[:3]
            require(origin == name, "another log's checkpoint")
            return int(size), base64.b64decode(encoded_root)
    raise ValueError("the checkpoint is not signed by this key")


def read_entries(folder: pathlib.Path, size: int) -> list[bytes]:
    entries: list[bytes] = []
    for number in range((size + 255) // 256):
        width, digits = min(256, size - 256 * number), f"{number:03d}"
        parts = [digits.zfill(-(-len(digits) // 3) * 3)[at : at + 3] for at in range(0, len(digits), 3)]
        path = folder / "tile" / "entries" / "/".join(["x" + part for part in parts[:-1]] + parts[-1:])
        partial = path.with_name(f"{path.name}.p") / str(width)
        data = (partial if width < 256 and partial.is_file() else path).read_bytes()
        for _ in range(width):
            end = 2 + int.from_bytes(data[:2], "big")
            require(2 < end <= len(data), f"entry {len(entries)} is cut")
            entries, data = [*entries, data[2:end]], data[end:]
        require(not data or width < 256, f"there is more behind entry {len(entries) - 1}")
    return entries


def check(folder: pathlib.Path, vkey: str) -> None:
    size, signed = read_checkpoint((folder / "checkpoint").read_text("utf-8"), vkey)
    leaves = [hashlib.sha256(b"\0" + entry).digest() for entry in read_entries(folder, size)]
    require(root(leaves) == signed, "the entries do not give the signed root")
    print(f"{size} entries, signed by {vkey.split('+', maxsplit=1)[0]}, root {signed.hex()}")
    for path in sorted(folder.glob("*.tlog-proof")):
        head, note = path.read_text("utf-8").split("\n\n", 1)
        lines = [line for line in head.split("\n")[1:] if not line.startswith("extra ")]
        index, hashes = int(lines[0].split(" ")[1]), [base64.b64decode(line) for line in lines[1:]]
        proof_size, proof_root = read_checkpoint(note, vkey)
        require(proof_size <= size and proof_root == root(leaves[:proof_size]), f"{path.name}: another log")
        require(proven_root(leaves[index], index, proof_size, hashes) == proof_root, f"{path.name} is wrong")
        print(f"{path.name}: entry {index} is in the log")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    trusted = arguments.pop(arguments.index("--key") + 1) if "--key" in arguments else ""
    folders = [word for word in arguments if word != "--key"]
    place = pathlib.Path(folders[0]) if folders else pathlib.Path(__file__).parent
    try:
        check(place, trusted or (place / "key").read_text("utf-8"))
    except (IndexError, OSError, ValueError) as error:
        sys.exit("NOT VALID: %s" % (error or type(error).__name__))
