# pragma version 0.4.3
# pragma evm-version paris
"""
@title Anchors of Trainyard ledgers
@license Apache-2.0
@notice A sender's line of each log: sizes, roots and block times, which only grow.
        An anchor after the first needs a proof of consistency (RFC 9162, 2.1.4) with the one before: the contract
        refuses a log that was cut or written anew. Nobody can change or remove an anchor; there is no owner.
"""

struct Anchored:
    root: bytes32
    size: uint64
    time: uint64

event LogAnchored:
    sender: indexed(address)
    log_id: indexed(bytes32)
    size: uint64
    root: bytes32
    time: uint64

anchors: HashMap[address, HashMap[bytes32, HashMap[uint256, Anchored]]]
counts: HashMap[address, HashMap[bytes32, uint256]]


@external
@view
def count(sender: address, log_id: bytes32) -> uint256:
    """
    @notice Number of anchors that a sender has of a log.
    """
    return self.counts[sender][log_id]


@external
@view
def anchored(sender: address, log_id: bytes32, number: uint256) -> (bytes32, uint64, uint64):
    """
    @notice Root, size and block time of an anchor; numbers begin at 0.
    """
    assert number < self.counts[sender][log_id], "no such anchor"
    row: Anchored = self.anchors[sender][log_id][number]
    return row.root, row.size, row.time


@external
def anchor(log_id: bytes32, size: uint64, root: bytes32, proof: DynArray[bytes32, 64]) -> uint256:
    """
    @notice Add an anchor of the sender's line of a log.
    @param log_id SHA-256 of the log's origin.
    @param proof Proof that the tree of `size` leaves begins with the tree that was anchored before; empty at first.
    @return Number of the anchor.
    """
    number: uint256 = self.counts[msg.sender][log_id]
    if number == 0:
        assert size > 0 and len(proof) == 0, "the first anchor has entries and no proof"
    else:
        before: Anchored = self.anchors[msg.sender][log_id][number - 1]
        assert size > before.size, "the log did not grow"
        assert self._begins_with(convert(before.size, uint256), convert(size, uint256), before.root, root, proof), "another history"
    self.anchors[msg.sender][log_id][number] = Anchored(root=root, size=size, time=convert(block.timestamp, uint64))
    self.counts[msg.sender][log_id] = number + 1
    log LogAnchored(sender=msg.sender, log_id=log_id, size=size, root=root, time=convert(block.timestamp, uint64))
    return number


@internal
@pure
def _begins_with(
    first: uint256, size: uint256, first_root: bytes32, root: bytes32, proof: DynArray[bytes32, 64]
) -> bool:
    if len(proof) == 0:
        return False
    node: uint256 = first - 1
    last: uint256 = size - 1
    for _: uint256 in range(64):
        if node & 1 == 0:
            break
        node = node >> 1
        last = last >> 1
    at: uint256 = 0
    old: bytes32 = first_root
    if node != 0:  # the first tree is not whole, so that the proof begins with a hash of it
        old = proof[0]
        at = 1
    new: bytes32 = old
    for index: uint256 in range(at, len(proof), bound=64):
        if last == 0:
            return False
        sibling: bytes32 = proof[index]
        if node & 1 == 1 or node == last:
            old = sha256(concat(x"01", sibling, old))
            new = sha256(concat(x"01", sibling, new))
            for _: uint256 in range(64):
                if node & 1 == 1 or node == 0:
                    break
                node = node >> 1
                last = last >> 1
        else:
            new = sha256(concat(x"01", new, sibling))
        node = node >> 1
        last = last >> 1
    return last == 0 and old == first_root and new == root
