"""Anchors in this machine: a timestamp authority of openssl, an EVM chain in this process, a witness.

with timestamp_authority(folder) as (url, roots): ...     a root certificate, an authority below it, RFC 3161
with evm_chain() as chain: ...                            chain.url answers JSON-RPC; chain.keys have money
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.inherited import child_environment
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.witnessing import Witness
from trainyard.testing.loopback import Answer, LoopbackHandler, answering

TSA_CONFIG = """
[tsa]
serial = serial
crypto_device = builtin
signer_cert = tsa.pem
signer_key = tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
accuracy = secs:1
ess_cert_id_chain = no
[tsa_extensions]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = critical,timeStamping
"""


def run_openssl(folder: Path, *arguments: str, data: bytes = b"") -> bytes:
    """Return the output of an openssl command in a folder."""
    done = subprocess.run(
        ["openssl", *arguments], cwd=folder, env=child_environment(), input=data, capture_output=True, check=True
    )
    return done.stdout


def make_authority(folder: Path, name: str = "Test TSA") -> Path:
    """Make a root certificate and an authority below it; return the PEM file of the root."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tsa.cnf").write_text(TSA_CONFIG)
    (folder / "serial").write_text("01\n")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    root = ("-x509", "-days", "30", "-subj", f"/CN={name} Root", "-keyout", "root.key", "-out", "root.pem")
    run_openssl(folder, "req", *key, *root, "-addext", "keyUsage=critical,keyCertSign")
    run_openssl(folder, "req", *key, "-subj", f"/CN={name}", "-keyout", "tsa.key", "-out", "tsa.csr")
    signed = ("-CA", "root.pem", "-CAkey", "root.key", "-CAcreateserial", "-days", "30", "-out", "tsa.pem")
    extensions = ("-extfile", "tsa.cnf", "-extensions", "tsa_extensions")
    run_openssl(folder, "x509", "-req", "-in", "tsa.csr", *signed, *extensions)
    return folder / "root.pem"


@contextmanager
def timestamp_authority(folder: Path) -> Iterator[tuple[str, Path]]:
    """Answer timestamp queries; the value is the address and the PEM file of the root certificate."""
    roots, lock = make_authority(folder), threading.Lock()

    def answer(_handler: LoopbackHandler, body: bytes) -> tuple[int, object]:
        with lock:
            (folder / "query.tsq").write_bytes(body)
            config = ("-config", "tsa.cnf", "-section", "tsa")
            return 200, run_openssl(folder, "ts", "-reply", "-queryfile", "query.tsq", *config)

    with answering(answer) as url:
        yield url, roots


@dataclass
class EvmChain:
    """An EVM of py-evm behind JSON-RPC, which mines a block for each transaction."""

    request: Any
    """Function (method, parameters) -> reply."""
    keys: list[str]
    """Private keys (hex) of accounts with money."""
    url: str = ""
    lost_replies: int = 0
    """So many of the next transactions reach the chain, and their answer does not reach the client."""
    calls: list[str] = field(default_factory=list)

    def answer(self, _handler: LoopbackHandler, body: bytes) -> Answer:
        from eth_tester.exceptions import TransactionFailed  # an extra
        from eth_utils.exceptions import ValidationError
        from web3 import Web3

        request = json.loads(body)
        self.calls.append(request["method"])
        try:
            reply = self.request(request["method"], request["params"])
        except TransactionFailed as error:
            reply = {"jsonrpc": "2.0", "error": {"code": 3, "message": f"execution reverted: {error}"}}
        except ValidationError as error:
            reply = {"jsonrpc": "2.0", "error": {"code": -32000, "message": str(error)}}
        if request["method"] == "eth_sendRawTransaction" and self.lost_replies:
            self.lost_replies -= 1
            return 503, "the answer is lost", {"Connection": "close"}
        return 200, json.loads(Web3.to_json({**reply, "id": request["id"]}))


@contextmanager
def evm_chain(port: int = 0) -> Iterator[EvmChain]:
    """Answer JSON-RPC for a chain in this process."""
    limit = sys.getrecursionlimit()
    from eth_tester import EthereumTester  # an extra
    from web3 import Web3
    from web3.providers.eth_tester import EthereumTesterProvider

    tester = EthereumTester()
    sys.setrecursionlimit(limit)  # py-evm raises it so far that deeply nested JSON overflows the stack of the process
    web3 = Web3(EthereumTesterProvider(tester))
    keys = [key.to_hex() for key in tester.backend.account_keys]
    chain = EvmChain(web3.provider.request_func(web3, web3.middleware_onion), keys)
    with answering(chain.answer, port) as url:
        chain.url = url
        yield chain


@contextmanager
def witness_of(home: Path, ledger: Ledger) -> Iterator[tuple[str, str]]:
    """Cosign a ledger's checkpoints over HTTP; the value is the address and the public key of the witness."""
    key = ledger.private_key()
    assert key is not None, "a ledger that has begun"
    witness, logs = Witness(home), [key.public]

    def answer(handler: LoopbackHandler, body: bytes) -> tuple[int, object, dict[str, str]]:
        if handler.command == "POST" and handler.path == "/add-checkpoint":
            reply = witness.add_checkpoint(body, logs)
        else:
            reply = witness.read_published(handler.path.split("/")[1], logs)
        return reply.status, reply.body, {"Content-Type": reply.kind}

    with answering(answer) as url:
        yield url, witness.key().public.vkey
