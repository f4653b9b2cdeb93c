"""Anchor the ledger of this home: now, or as `ledger_anchor_every` of trainyard.toml says."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainyard.app.context import Context
from trainyard.app.responses import Response
from trainyard.errors import InvalidInput, NotFound, TrainyardError, Unavailable
from trainyard.operations import ledger as requests
from trainyard.settings import Settings
from trainyard.stores.ledger.anchors.evm import deploy_contract
from trainyard.stores.ledger.anchors.keeping import AnchorOutcome, anchor_ledger, list_due
from trainyard.stores.ledger.anchors.table import ANCHOR_KINDS
from trainyard.stores.ledger.audit_stream import commit_audit
from trainyard.stores.ledger.log import Ledger


class AnchorResult(Response):
    """Result at one anchor."""

    name: str
    kind: str
    is_new: bool
    """Whether it got a checkpoint now; else it had the newest already, or failed."""
    size: int | None = None
    where: str = ""
    proves: str = ""
    code: str = ""
    problem: str = ""


class AnchoredLedger(Response):
    """Result at each anchor, or the address of a contract that was deployed."""

    anchors: tuple[AnchorResult, ...] = ()
    contract: str = ""

    @property
    def exit_code(self) -> int:
        return Unavailable.exit_code if any(anchor.problem for anchor in self.anchors) else 0


def anchor(request: requests.LedgerAnchorInput, context: Context) -> AnchoredLedger:
    """Bring the newest checkpoint to the anchors. Raises `InvalidInput` (`E-SETTINGS`, `E-PARAMETER`), `NotFound`."""
    anchors = context.settings.ledger_anchors
    chosen = {
        name: setting for name, setting in anchors.items() if not request.to or {name, setting.kind} & set(request.to)
    }
    missing = [word for word in request.to if not any(word in (name, s.kind) for name, s in anchors.items())]
    if not chosen or missing:
        raise InvalidInput(
            f"trainyard.toml has no anchor {missing[0]!r}." if missing else "trainyard.toml has no ledger_anchors.",
            why=f"It has {', '.join(anchors) or 'none'}; kinds are {', '.join(ANCHOR_KINDS)}.",
            do="Add a table [ledger_anchors.NAME] with kind and place, as docs/ledger.md shows.",
            code="E-SETTINGS",
        )
    if request.deploy:
        chains = [setting for setting in chosen.values() if setting.kind == "evm"]
        if len(chains) != 1:
            raise InvalidInput("--deploy needs one anchor of the kind evm: name it with --to.", code="E-PARAMETER")
        return AnchoredLedger(contract=deploy_contract(chains[0]))
    ledger = Ledger.at_home(context.settings.home)
    ledger.head()
    commit_audit(ledger)
    outcomes = anchor_ledger(ledger, chosen)
    return AnchoredLedger(anchors=tuple(map(describe_outcome, outcomes)))


def describe_outcome(outcome: AnchorOutcome) -> AnchorResult:
    record, error = outcome.record, outcome.error
    return AnchorResult(
        name=outcome.name, kind=outcome.kind, is_new=outcome.is_new, size=record.size if record else None,
        where=record.where if record else "", proves=ANCHOR_KINDS[outcome.kind].proves if record else "",
        code=error.code if error else "", problem=str(error) if error else "",
    )  # fmt: skip


def anchor_due(settings: Settings, say: Callable[[str], None]) -> None:
    """Anchor what is due; called by the watchdog. What fails is said, recorded and tried again."""
    if not settings.ledger_anchor_every:
        return
    ledger = Ledger.at_home(settings.home)
    try:
        due = list_due(ledger, settings.ledger_anchors, settings.ledger_anchor_every, time.time())
        for outcome in anchor_ledger(ledger, {name: settings.ledger_anchors[name] for name in due}) if due else ():
            if outcome.error is not None:
                say(f"the anchor {outcome.name} of the ledger: {outcome.error}")
            elif outcome.is_new and outcome.record is not None:
                say(f"{outcome.record.size} entries of the ledger are anchored: {outcome.record.where}")
    except NotFound:
        return
    except TrainyardError as error:
        say(f"the ledger was not anchored: {error}")
