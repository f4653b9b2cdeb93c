"""Entries of the ledger: which steps there are, the key of each, and how a step is recorded.

An entry contains digests, counts and settings: no prompt, no row and no secret.
"""

from __future__ import annotations

import math
import threading
import time
from decimal import Decimal
from pathlib import Path

from trainyard.errors import TrainyardError
from trainyard.json_types import JsonObject
from trainyard.stores.ledger.log import Ledger, run_key
from trainyard.stores.ledger.unledgered import UnledgeredEntry, UnledgeredFile, may_heal

DATA_READ, GENERATED, VALIDATED, TRAINED = "data_read", "generated", "validated", "trained"
EVALUATED, DEPLOYED, PUBLISHED, PROMOTED = "evaluated", "deployed", "published", "promoted"
PAUSED, RESUMED, FAILED, RENTED, PAID = "paused", "resumed", "failed", "rented", "paid"
ANCHORED, ANCHOR_FAILED, AUDITED = "anchored", "anchor_failed", "audited"
KINDS = (
    DATA_READ, GENERATED, VALIDATED, TRAINED, EVALUATED, DEPLOYED, PUBLISHED, PROMOTED, PAUSED, RESUMED, FAILED,
    RENTED, PAID, ANCHORED, ANCHOR_FAILED, AUDITED,
)  # fmt: skip
_LEDGERS: dict[Path, Ledger] = {}
_LOCK = threading.Lock()


def open_ledger(home: Path) -> Ledger:
    """Return the ledger of a home; the threads of this process share it, and so their commits."""
    with _LOCK:
        return _LEDGERS.setdefault(home, Ledger.at_home(home))


def record_step(home: Path, kind: str, key: str, **fields: object) -> str:
    """Add an entry, unless its key is there. Return the reason where it could not be written, empty when it is there.

    A step that is done is not undone because it could not be recorded: the caller reports the reason, the entry is kept
    as unledgered, and the next one that can be written brings it along.
    """
    assert kind in KINDS, kind
    ledger, draft = open_ledger(home), {"kind": kind, "key": key, **to_finite(fields)}
    unledgered = UnledgeredFile.of_ledger(ledger)
    try:
        unledgered.heal(ledger.append, [draft])
    except (TrainyardError, OSError) as error:
        return keep_unledgered(unledgered, draft, error)
    unledgered.make_reserve()
    return ""


def keep_unledgered(unledgered: UnledgeredFile, draft: JsonObject, error: TrainyardError | OSError) -> str:
    """Keep an entry that could not be written, and return what the caller reports."""
    if not may_heal(error):
        return f"The step is not in the ledger, and is not added later. {error}"
    code = error.code if isinstance(error, TrainyardError) else "E-DISK-ERROR"
    try:
        unledgered.add(UnledgeredEntry(draft, round(time.time(), 3), code))
    except OSError as second:
        return f"The step is not in the ledger, and could not be kept for later ({second.strerror}). {error}"
    return f"The step is not in the ledger yet; the next entry brings it along. {error}"


def to_finite(value: object) -> JsonObject:
    """Return the values as JSON has them: NaN and infinities are texts, fields that are None are left out."""
    cleaned = clean(value)
    assert isinstance(cleaned, dict)
    return cleaned


def clean(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 53:
        return str(value)
    if isinstance(value, dict):
        return {str(name): clean(part) for name, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [clean(part) for part in value]
    return value


def record_rented(home: Path, *, provider: str, machine: str, gpu: str, count: int, usd_per_hour: Decimal,
                  price_source: str, tenant: str = "") -> str:  # fmt: skip
    """Record that a machine was rented; `machine` is the provider's id of it, so that twice is one entry."""
    return record_step(
        home, RENTED, run_key(RENTED, provider, machine), provider=provider, machine=machine, gpu=gpu, gpus=count,
        gpu_price_per_hour={"amount": str(usd_per_hour), "currency": "USD", "source": price_source}, tenant=tenant,
    )  # fmt: skip


def record_paid(home: Path, *, provider: str, machine: str, seconds: float, usd: Decimal, tenant: str = "") -> str:
    """Record the cost of a machine that was released; a later correction of the amount is an entry of its own."""
    return record_step(
        home, PAID, run_key(PAID, provider, machine, usd), provider=provider, machine=machine,
        seconds=round(seconds, 3), cost={"amount": str(usd), "currency": "USD"}, tenant=tenant,
    )  # fmt: skip
