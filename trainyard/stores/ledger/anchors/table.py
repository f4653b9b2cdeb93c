"""The kinds of anchors, each with what a checkpoint there proves."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.stores.ledger.anchors.contract import AnchorKind
from trainyard.stores.ledger.anchors.evm import look_on_chain, place_on_chain
from trainyard.stores.ledger.anchors.folders import (
    look_in_bucket,
    look_in_folder,
    place_in_bucket,
    place_in_folder,
)
from trainyard.stores.ledger.anchors.git import look_in_git, place_in_git
from trainyard.stores.ledger.anchors.timestamp import look_at_timestamps, place_timestamp
from trainyard.stores.ledger.anchors.witness import look_at_witness, place_at_witness

ANCHOR_KINDS: Mapping[str, AnchorKind] = {
    "folder": AnchorKind(
        place_in_folder, look_in_folder,
        "these entries were there then, to all who trust those who can write to that folder",
    ),
    "bucket": AnchorKind(
        place_in_bucket, look_in_bucket,
        "these entries were there then, as long as the bucket's retention forbids its owner to remove objects",
    ),
    "git": AnchorKind(
        place_in_git, look_in_git,
        "these entries were there when somebody else fetched the commit; a branch that nobody has can be rewritten",
    ),
    "timestamp": AnchorKind(
        place_timestamp, look_at_timestamps,
        "these entries existed at that time, says the authority; not that there is no second history",
    ),
    "witness": AnchorKind(
        place_at_witness, look_at_witness,
        "the witness has seen no other history up to these entries", lists_all=False,
    ),
    "evm": AnchorKind(
        place_on_chain, look_on_chain,
        "this sender has anchored one history alone up to these entries, in a block of that time", lists_all=False,
    ),
}  # fmt: skip
