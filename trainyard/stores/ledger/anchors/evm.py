"""Anchor in a contract on an EVM chain, `LedgerAnchor.vy`: root, size, block time and sender of each checkpoint.

The contract checks a proof of consistency itself, so that a sender's line of a log has one history. An anchor costs
about 110,000 gas. `LedgerAnchor.json` is its compiled form: `python -m tools.contract` makes it with vyper.
web3.py is the client: the reference implementation in Python, which signs without a node's accounts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainyard.anchor_settings import EvmAnchor
from trainyard.errors import Conflict, Corrupt, InvalidInput
from trainyard.json_types import JsonObject
from trainyard.stores.ledger.anchors.contract import (
    REQUEST_S,
    AnchorRecord,
    PlacedCheckpoint,
    SeenCheckpoint,
    build_unreachable,
    require_package,
)
from trainyard.stores.ledger.log import Head
from trainyard.stores.ledger.merkle import prove_consistency
from trainyard.stores.ledger.notes import hash_origin
from trainyard.stores.secret_files import read_secret

COMPILED = Path(__file__).with_name("LedgerAnchor.json")
RECEIPT_S = 120.0
"""A block takes 12 s on Ethereum."""
MOST_SEEN = 1_000
"""The newest anchors of a sender that are read: the contract has checked that those before are their beginning."""


def read_compiled() -> JsonObject:
    return dict(json.loads(COMPILED.read_text(encoding="utf-8")))


class ChainLine:
    """The sender's line of anchors in the contract."""

    def __init__(self, setting: EvmAnchor) -> None:
        try:
            import requests  # web3's client of HTTP
            from web3 import Web3  # an extra; a second to import
        except ModuleNotFoundError as error:
            raise require_package(error, "anchor") from error
        name = setting.url.removeprefix("env:")
        url = os.environ.get(name, "") if setting.url.startswith("env:") else setting.url
        if not url:
            raise InvalidInput(f"The variable {name} of ledger_anchors is not set.", code="E-SETTINGS")
        self.setting = setting
        self.session = requests.Session()
        options = {"timeout": REQUEST_S}
        # A transaction is not sent again blindly: the next try looks up whether it has arrived.
        provider = Web3.HTTPProvider(
            url, request_kwargs=options, session=self.session, exception_retry_configuration=None
        )
        self.web3 = Web3(provider)
        try:
            self.account: Any = self.web3.eth.account.from_key(read_secret(setting.key, "The key of the EVM sender"))
        except InvalidInput:
            raise
        except Exception:  # its text may contain the key
            raise InvalidInput("The key of the EVM sender is not a private key.", code="E-SETTINGS") from None

    @property
    def sender(self) -> str:
        return str(self.account.address)

    @property
    def contract(self) -> Any:
        if not self.setting.contract:
            raise InvalidInput(
                "The anchor names no contract.", do="Run `trainyard ledger anchor --to NAME --deploy` once.",
                code="E-SETTINGS",
            )  # fmt: skip
        address = self.web3.to_checksum_address(self.setting.contract)
        if not self.web3.eth.get_code(address):
            raise InvalidInput(f"There is no contract at {address} on this chain.", code="E-SETTINGS")
        return self.web3.eth.contract(address, abi=read_compiled()["abi"])

    def send(self, call: Any) -> Any:
        """Send a transaction and return its receipt, once it is in a block. Raises `Conflict` where it reverts."""
        from web3.exceptions import ContractLogicError, TimeExhausted  # an extra

        nonce = self.web3.eth.get_transaction_count(self.account.address, "pending")
        try:
            draft = call.build_transaction({"from": self.account.address, "nonce": nonce})
            signed = self.account.sign_transaction(draft)
            sent = self.web3.eth.send_raw_transaction(signed.raw_transaction)
            receipt = self.web3.eth.wait_for_transaction_receipt(sent, timeout=RECEIPT_S)
        except ContractLogicError as error:
            raise Conflict(f"The contract refuses: {str(error).splitlines()[0][:200]}") from None
        except TimeExhausted as error:
            raise build_unreachable("The transaction is in no block yet; it is looked up at the next try.") from error
        if receipt["status"] != 1:
            raise Conflict("The contract has refused the transaction.")
        return receipt

    def read_seen(self, sender: str, log_id: str) -> list[SeenCheckpoint]:
        contract, account = self.contract, self.web3.to_checksum_address(sender)
        identifier = bytes.fromhex(log_id)
        count = int(contract.functions.count(account, identifier).call())
        seen = []
        for number in range(max(0, count - MOST_SEEN), count):
            root, size, time = contract.functions.anchored(account, identifier, number).call()
            seen.append(SeenCheckpoint(int(size), bytes(root), f"anchor {number} of {account}", float(time)))
        return seen


@contextmanager
def open_line(setting: EvmAnchor) -> Iterator[ChainLine]:
    """Open the sender's line, and raise `Unavailable` for what web3 raises: its texts may contain a key of the node."""
    line = ChainLine(setting)
    import requests  # web3's client of HTTP
    from web3.exceptions import Web3Exception  # an extra

    try:
        yield line
    except (Web3Exception, requests.RequestException, OSError) as error:
        raise build_unreachable("The chain does not answer, or refuses.", type(error).__name__) from error
    finally:
        line.session.close()


def place_on_chain(setting: EvmAnchor, head: Head, _records: Sequence[AnchorRecord]) -> PlacedCheckpoint:
    """Send the checkpoint to the contract; one that is there already, after a lost answer, is not sent again."""
    with open_line(setting) as line:
        log_id = hash_origin(head.checkpoint.origin)
        before = line.read_seen(line.sender, log_id)
        facts: JsonObject = {"sender": line.sender, "contract": setting.contract, "chain": line.web3.eth.chain_id}
        if not before or before[-1].size != head.size:
            old = before[-1].size if before else 0
            proof = prove_consistency(old, head.size, head.tiles.subtree)
            call = line.contract.functions.anchor(bytes.fromhex(log_id), head.size, head.checkpoint.root, proof)
            receipt = line.send(call)
            facts |= {"transaction": receipt["transactionHash"].hex(), "block": receipt["blockNumber"]}
        newest = line.read_seen(line.sender, log_id)[-1]
    if (newest.size, newest.root) != (head.size, head.checkpoint.root):
        raise Corrupt("The contract has another checkpoint than the one that was sent.")
    return PlacedCheckpoint(f"{newest.where} in {setting.contract}", {**facts, "block_time": newest.time})


def look_on_chain(setting: EvmAnchor, origin: str, records: Sequence[AnchorRecord]) -> list[SeenCheckpoint]:
    """Return the anchors in the contract of this sender, and of those before it."""
    with open_line(setting) as line:
        chain = line.web3.eth.chain_id
        if elsewhere := [record for record in records if record.facts.get("chain") != chain]:
            raise Corrupt(f"The node is of chain {chain}; {elsewhere[0].size:,} entries were anchored on another.")
        contract = setting.contract.lower()
        if others := [record for record in records if str(record.facts.get("contract")).lower() != contract]:
            raise Corrupt(f"{others[0].size:,} entries were anchored in {others[0].facts.get('contract')}.")
        senders = dict.fromkeys([line.sender, *(str(record.facts.get("sender")) for record in records)])
        return [seen for sender in senders for seen in line.read_seen(sender, hash_origin(origin))]


def deploy_contract(setting: EvmAnchor) -> str:
    """Deploy the contract and return its address."""
    compiled = read_compiled()
    with open_line(setting) as line:
        contract = line.web3.eth.contract(abi=compiled["abi"], bytecode=compiled["bytecode"])
        return str(line.send(contract.constructor())["contractAddress"])
