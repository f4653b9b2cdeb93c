"""The contract of anchors on an EVM in this process: sizes only grow, histories only continue, senders are apart."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from tools.contract import compile_contract
from trainyard.stores.ledger.anchors.evm import COMPILED, read_compiled
from trainyard.stores.ledger.merkle import hash_leaf, prove_consistency, subtree_of, tree_root

LEAVES = [hash_leaf(bytes([number])) for number in range(40)]
ROOT = {size: tree_root(LEAVES[:size]) for size in range(41)}


@pytest.fixture(scope="module")
def evm() -> Any:
    from web3 import EthereumTesterProvider, Web3  # an extra; only this file needs it in this process

    return Web3(EthereumTesterProvider())


@pytest.fixture(scope="module")
def contract(evm: Any) -> Any:
    compiled = read_compiled()
    made = evm.eth.contract(abi=compiled["abi"], bytecode=compiled["bytecode"])
    receipt = evm.eth.wait_for_transaction_receipt(made.constructor().transact({"from": evm.eth.accounts[0]}))
    return evm.eth.contract(receipt["contractAddress"], abi=compiled["abi"])


def send(evm: Any, contract: Any, log: bytes, size: int, *, old: int = 0, sender: int = 0, **changes: Any) -> Any:
    """Anchor the tree of `size` leaves with its proof, or with what `changes` has instead, and return the receipt."""
    proof = changes.get("proof", prove_consistency(old, size, subtree_of(LEAVES)))
    call = contract.functions.anchor(log, size, changes.get("root", ROOT[size]), proof)
    return evm.eth.wait_for_transaction_receipt(call.transact({"from": evm.eth.accounts[sender]}))


def read(evm: Any, contract: Any, log: bytes, sender: int = 0) -> list[tuple[bytes, int]]:
    account = evm.eth.accounts[sender]
    count = contract.functions.count(account, log).call()
    rows = [contract.functions.anchored(account, log, number).call() for number in range(count)]
    return [(root, size) for root, size, _ in rows]


def test_the_compiled_contract_is_that_of_its_source() -> None:
    assert compile_contract() == COMPILED.read_text(encoding="utf-8"), "run python -m tools.contract"


def test_sizes_and_roots_are_kept_with_time_and_sender(evm: Any, contract: Any) -> None:
    log = sha256(b"kept").digest()
    old = 0
    for size in (1, 2, 3, 7, 8, 21, 40):
        receipt = send(evm, contract, log, size, old=old)
        (event,) = contract.events.LogAnchored().process_receipt(receipt)
        block = evm.eth.get_block(receipt["blockNumber"])
        assert event["args"] == {
            "sender": evm.eth.accounts[0], "log_id": log, "size": size, "root": ROOT[size], "time": block["timestamp"],
        }  # fmt: skip
        old = size
    assert read(evm, contract, log) == [(ROOT[size], size) for size in (1, 2, 3, 7, 8, 21, 40)]


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (11, {"root": bytes(32)}),
        (11, {"proof": []}),
        (11, {"proof": [bytes(32)] * 4}),
        (21, {"proof": prove_consistency(11, 20, subtree_of(LEAVES))}),
        (21, {"proof": [*prove_consistency(11, 21, subtree_of(LEAVES)), bytes(32)]}),
        (21, {"proof": prove_consistency(11, 21, subtree_of(LEAVES))[:-1]}),
        (21, {"root": ROOT[20]}),
        (11, {"old": 11}),
        (10, {"old": 10}),
        (5, {"old": 5}),
        (0, {}),
    ],
)
def test_another_history_is_refused(evm: Any, contract: Any, size: int, changes: dict[str, Any]) -> None:
    from eth_tester.exceptions import TransactionFailed  # an extra

    log = sha256(repr((size, changes)).encode()).digest()
    send(evm, contract, log, 11)
    with pytest.raises(TransactionFailed):
        send(evm, contract, log, size, **{"old": 11 if size > 11 else 0, **changes})
    assert read(evm, contract, log) == [(ROOT[11], 11)]


def test_a_first_anchor_has_entries_and_no_proof(evm: Any, contract: Any) -> None:
    from eth_tester.exceptions import TransactionFailed  # an extra

    log = sha256(b"first").digest()
    for size, proof in ((0, []), (3, [bytes(32)])):
        with pytest.raises(TransactionFailed):
            send(evm, contract, log, size, proof=proof)


def test_senders_have_lines_of_their_own(evm: Any, contract: Any) -> None:
    """Somebody else cannot take a log's place, whatever size he sends first."""
    log = sha256(b"senders").digest()
    send(evm, contract, log, 40, sender=1, root=bytes(32))
    send(evm, contract, log, 3, sender=0)
    assert (read(evm, contract, log), read(evm, contract, log, 1)) == ([(ROOT[3], 3)], [(bytes(32), 40)])


def test_the_contract_has_nothing_that_changes_an_anchor() -> None:
    functions = {row["name"]: row["stateMutability"] for row in read_compiled()["abi"] if row["type"] == "function"}
    assert functions == {"anchor": "nonpayable", "anchored": "view", "count": "view"}
