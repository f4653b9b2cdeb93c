"""Check a ledger's bundle without Trainyard: `python verify_ledger.py [FOLDER [VKEY ...]]`. Python 3.9 is enough.

Its entries have to give the root of a Merkle tree (RFC 6962) that the log's key has signed (Ed25519, RFC 8032): the one
in the file `key`, or one that you name, which is worth more. Proofs (*.tlog-proof) have to be those of this tree, and
earlier checkpoints, yours (*.checkpoint), cosigned or anchored, its beginning. Witnesses that you name have to have
cosigned one. What an anchor has is asked there; here its files have to be those that were recorded.
"""

import base64
import hashlib
import json
import pathlib
import sys

P, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D, ROOT_OF_MINUS_1 = -121665 * pow(121666, -1, P) % P, pow(2, (P - 1) // 4, P)  # the curve -x² + y² = 1 + Dx²y²
BASE = (4 * pow(5, -1, P) % P).to_bytes(32, "little")


def require(fits: object, problem: str) -> None:
    if not fits:
        raise ValueError(problem)


def add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    (x, y), (u, v), t = a, b, D * a[0] * a[1] * b[0] * b[1]
    return (x * v + y * u) * pow(1 + t, -1, P) % P, (y * v + x * u) * pow(1 - t, -1, P) % P


def multiply(number: int, point: tuple[int, int]) -> tuple[int, int]:
    even = multiply(number // 2, add(point, point)) if number else (0, 1)
    return add(even, point) if number & 1 else even


def decode(data: bytes) -> tuple[int, int]:
    sign, y = divmod(int.from_bytes(data, "little"), 2**255)
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * ROOT_OF_MINUS_1 % P
    require(y < P and x * x % P == square and (x or not sign), "a key or a signature is not a point of the curve")
    return (x if x & 1 == sign else P - x), y


def is_signed(key: bytes, signature: bytes, message: bytes) -> bool:
    hashed, s = hashlib.sha512(signature[:32] + key + message).digest(), int.from_bytes(signature[32:], "little")
    right = add(decode(signature[:32]), multiply(int.from_bytes(hashed, "little") % ORDER, decode(key)))
    return len(signature) == 64 and s < ORDER and multiply(s, decode(BASE)) == right


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def split_vkey(vkey: str) -> tuple[str, bytes]:
    name, _, encoded = vkey.split("+", 2)
    return name, base64.b64decode(encoded)


def read_checkpoint(note: bytes, *vkeys: str) -> tuple[int, bytes]:
    """Return size and root, after a check that each key, of a log (type 1) or a witness (type 4), has signed them."""
    text, _, lines = note.decode().rpartition("\n\n")
    for name, key in map(split_vkey, vkeys):
        blobs = [base64.b64decode(line.split(" ")[2]) for line in lines.splitlines() if line.split(" ")[1] == name]
        blob = next((blob[4:] for blob in blobs if blob[:4] == sha(name.encode(), b"\n", key)[:4]), bytes(64))
        time = f"cosignature/v1\ntime {int.from_bytes(blob[:8], 'big')}\n" if key[0] == 4 else ""
        signature = blob[8:] if time else blob
        require(key[0] in (1, 4) and is_signed(key[1:], signature, f"{time}{text}\n".encode()), f"not signed by {name}")
    return int(text.split("\n")[1]), base64.b64decode(text.split("\n")[2])


def hash_tree(leaves: list[bytes], index: int = 0) -> tuple[bytes, list[bytes]]:
    """Return the root of leaf hashes, and the proof of inclusion of one of them."""
    if len(leaves) < 2:
        return (leaves or [sha()])[0], []
    half = 1 << (len(leaves) - 1).bit_length() - 1
    (left, path), (right, other) = hash_tree(leaves[:half], index), hash_tree(leaves[half:], index - half)
    return sha(b"\1", left, right), [*path, right] if index < half else [*other, left]


def read_leaves(folder: pathlib.Path) -> list[bytes]:
    files = sorted(path for path in (folder / "tile/entries").rglob("*") if path.is_file())
    data, leaves, at = b"".join(path.read_bytes() for path in files), list[bytes](), 0
    while at < len(data):
        start, at = at + 2, at + 2 + int.from_bytes(data[at : at + 2], "big")
        require(start < at <= len(data), f"entry {len(leaves)} is cut")
        leaves.append(sha(b"\0", data[start:at]))
    return leaves


def check(folder: pathlib.Path, log: str, witnesses: set[str]) -> None:
    leaves = read_leaves(folder)
    expected = read_checkpoint((folder / "checkpoint").read_bytes(), log)
    require(expected == (len(leaves), hash_tree(leaves)[0]), "the entries do not give the signed root")
    print(f"{len(leaves)} entries, signed by {log}, root {expected[1].hex()}")
    for path in sorted(folder.glob("*.tlog-proof")):
        head, _, note = path.read_text("utf-8").partition("\n\n")
        header, index, *proof = [line for line in head.split("\n") if not line.startswith("extra ")]
        size, root = read_checkpoint(note.encode(), log)
        number = int(index[len("index ") :])
        lines = ("c2sp.org/tlog-proof@v1", f"index {number}")
        require((header, index) == lines and 0 <= number < size, f"{path.name} is not a proof")
        proven = (root, [base64.b64decode(line, validate=True) for line in proof])
        require(proven == hash_tree(leaves[:size], number), f"{path.name} is wrong")
        print(f"{path.name}: entry {number} is in the log")
    for path in sorted([*folder.glob("cosigned/*"), *folder.glob("**/*.checkpoint")]):
        cosigned = {vkey for vkey in witnesses if f"\n— {split_vkey(vkey)[0]} " in path.read_text("utf-8")}
        size, root = read_checkpoint(path.read_bytes(), *cosigned)
        require(size <= len(leaves) and root == hash_tree(leaves[:size])[0], f"{path.name} is not its beginning")
        print(f"{path.name}: its {size} entries are the first ones of this log")
        witnesses = witnesses - cosigned
    require(not witnesses, f"nothing is cosigned by {witnesses}")
    for path in sorted(folder.glob("anchors/*.json")):
        record, files = json.loads(path.read_text()), [path.with_suffix(end) for end in (".checkpoint", ".token")]
        digests = [sha(file.read_bytes()) if file.is_file() else b"" for file in files]
        recorded = [bytes.fromhex(record["note_sha256"]), bytes.fromhex(record["token_sha256"])]
        require(digests == recorded, f"{path.name} has other files")
        stamped = record["kind"] != "timestamp" or digests[0] in files[1].read_bytes()
        require(stamped, f"{path.name} has a timestamp of something else")
        print(f"{path.name}: ask {record['name']} ({record['kind']}) for {record['where']}")


if __name__ == "__main__":
    place = pathlib.Path(sys.argv[1]) if sys.argv[1:] else pathlib.Path(__file__).parent
    try:
        kinds = {vkey: split_vkey(vkey)[1][0] for vkey in sys.argv[2:]}
        logs = [vkey for vkey, kind in kinds.items() if kind == 1] or [(place / "key").read_text().strip()]
        require(len(logs) == 1, "a bundle has one log: name one key of it")
        check(place, logs[0], kinds.keys() - logs)
    except (LookupError, OSError, TypeError, ValueError) as error:
        sys.exit(f"NOT VALID: {error or type(error).__name__}")
