"""Limits of tiers: every row of the shipped table in every tier, and policies that are not in force."""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.small_jobs import Jobs
from tests.unit.stores.test_job_index import make_row
from trainyard.app.context import Caller, Context
from trainyard.app.live.jobs import open_index
from trainyard.app.plan.check import check
from trainyard.app.plan.limits import (
    Limits,
    SignedPolicy,
    count_open,
    lock_free_worker,
    lock_worker_of,
    require_free_worker,
)
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.plan.tiers import list_limit_refusals
from trainyard.backends.tier_limits import load_policy, require_within_tier
from trainyard.data.rows import ROWS_FILE, SftRow, write_rows
from trainyard.errors import Conflict, NotFound, Refused, TrainyardError
from trainyard.operations.chains import CheckInput
from trainyard.operations.limits import limits_text
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ChainSpec
from trainyard.spec.estimate.estimate import SampledNode
from trainyard.spec.limits import Feature
from trainyard.spec.states import JobState
from trainyard.stores.signing.policies import parse_policy
from trainyard.surfaces.invocation import build_request, execute_operation

SHIPPED = Path("deployments/limits/tiers.yaml")
TIERS = ("free", "standard", "professional", "enterprise")


def sign(tmp_path: Path, source: Path = SHIPPED, **tenants: str) -> Settings:
    """Return the settings of a home whose policy is a signed copy of a file, with these tenants."""
    settings, policy = load_settings(home=tmp_path / "home"), tmp_path / "policy.yaml"
    policy.write_text(source.read_text().replace("tenants: {}", f"tenants: {json.dumps(tenants)}"))
    out = tmp_path / "limits.note"
    signed: SignedPolicy = execute_operation(
        "limits sign", build_request("limits sign", {"policy": policy, "out": out}), Context(settings)
    )
    return settings.model_copy(update={"limits_file": out, "limits_key": signed.key})


def trainer(backend: str = "mlx", epochs: float = 1.0, **config: Any) -> dict[str, Any]:
    settings = {"backend": backend, "hyperparameters": {"epochs": epochs}, **config}
    return {"type": "trainer", "config": settings}


SOURCE: dict[str, Any] = {"type": "data_source", "config": {"path": "data.jsonl"}}
LATENT = {"stage": {"type": "sft", "latent": {"type": "pause"}}}
TWO = {"launch": {"strategy": "ddp", "processes": 2}}
HOSTS = {"launch": {"strategy": "ddp", "processes": 2, "hosts": ["a", "b"]}}
WORKER: dict[str, Any] = {
    "type": "data_source",
    "config": {"data_worker": "http://127.0.0.1:8892", "path": "/datasets/rows/rows.jsonl"},
}


def chain(*nodes: dict[str, Any], tenant: str) -> ChainSpec:
    return ChainSpec.model_validate({"name": "test", "tenant": tenant, "nodes": nodes})


ROWS: dict[str, tuple[tuple[dict[str, Any], ...], int, tuple[str, ...]]] = {
    "backend mlx": ((SOURCE, trainer()), 10, ("free", "professional", "enterprise")),
    "backend trl": ((SOURCE, trainer("trl")), 10, ("standard", "professional", "enterprise")),
    "backend unsloth": ((SOURCE, trainer("unsloth")), 10, ("standard", "professional", "enterprise")),
    "backend native": ((SOURCE, trainer("native")), 10, ("professional", "enterprise")),
    "3 epochs": ((SOURCE, trainer(epochs=3)), 10, ("free", "professional", "enterprise")),
    "4 epochs": ((SOURCE, trainer("trl", 4)), 10, ("standard", "professional", "enterprise")),
    "11 epochs": ((SOURCE, trainer("trl", 11)), 10, ("professional", "enterprise")),
    "1000 rows": ((SOURCE, trainer()), 1000, ("free", "professional", "enterprise")),
    "1001 rows": ((SOURCE, trainer("trl")), 1001, ("standard", "professional", "enterprise")),
    "10001 rows": ((SOURCE, trainer("trl")), 10001, ("professional", "enterprise")),
    "100001 rows": ((SOURCE, trainer("trl")), 100001, ("enterprise",)),
    "chains": (
        (SOURCE, {"type": "validator", "config": {}}, trainer("trl")), 10, ("standard", "professional", "enterprise")
    ),
    "latent": ((SOURCE, trainer("native", **LATENT)), 10, ("professional", "enterprise")),
    "multi_gpu": ((SOURCE, trainer("native", **TWO)), 10, ("professional", "enterprise")),
    "distributed": ((SOURCE, trainer("native", **HOSTS)), 10, ("enterprise",)),
    "data_worker": ((WORKER, trainer("native")), 10, ("professional", "enterprise")),
}  # fmt: skip
"""Row of the table -> nodes, rows of the data set, and the tiers that allow it."""


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("row", ROWS)
def test_each_row_is_allowed_in_its_tiers(tmp_path: Path, row: str, tier: str) -> None:
    nodes, rows, allowing = ROWS[row]
    settings = sign(tmp_path, acme=tier)
    resolved = resolve_chain(chain(*nodes, tenant="acme"), settings)
    sampled = {resolved.order[0]: SampledNode(rows={Port.SFT: rows})}
    reasons = list_limit_refusals(resolved, settings, sampled)
    assert (reasons == []) == (tier in allowing), [reason.line() for reason in reasons]
    for reason in reasons:
        assert reason.code == "E-LIMIT"
        assert f"tier {tier} of the tenant acme" in reason.because
        assert reason.instead == f"The tier {allowing[0]} allows it: ask license@example.com."


def test_workers_are_limited_in_each_tier(tmp_path: Path) -> None:
    policy = load_policy(sign(tmp_path))
    assert policy is not None
    assert [tier.workers for tier in policy.tiers] == [1, 2, 5, None]


def test_without_a_policy_nothing_is_limited(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
    nodes = (SOURCE, trainer("native", 9999, **HOSTS))
    assert list_limit_refusals(resolve_chain(chain(*nodes, tenant="acme"), settings), settings) == []
    shown: Limits = execute_operation("limits", build_request("limits", {}), Context(settings))
    assert "unlimited" in limits_text(shown)


def test_steps_count_as_passes_over_the_rows(tmp_path: Path) -> None:
    settings = sign(tmp_path, acme="standard")
    steps = trainer("trl", hyperparameters={"max_steps": 100, "batch_size": 4, "gradient_accumulation": 1})
    resolved = resolve_chain(chain(SOURCE, steps, tenant="acme"), settings)
    source, train = resolved.order
    for rows, allowed in ((40, True), (39, False)):
        sampled = {source: SampledNode(rows={Port.SFT: rows}), train: SampledNode(examples=rows)}
        assert (list_limit_refusals(resolved, settings, sampled) == []) is allowed


def test_rows_that_a_chain_made_itself_are_counted_before_it_trains(tmp_path: Path, tiny_model: Path) -> None:
    settings = sign(tmp_path, default="free", acme="enterprise")
    folder = tmp_path / "many"
    count = write_rows(folder / ROWS_FILE, Port.SFT, (SftRow(messages=[]) for _ in range(1001)))
    assert count == 1001
    job = Jobs(tiny_model, {Port.SFT: folder}, tmp_path)(Port.SFT, backend="mlx")
    many = job.model_copy(update={"tenant": "default"})
    with pytest.raises(Refused, match="1,001 rows"):
        require_within_tier(many, settings)
    require_within_tier(many.model_copy(update={"tenant": "acme"}), settings)


def test_check_says_it_before_a_run(tmp_path: Path) -> None:
    settings = sign(tmp_path).model_copy(update={"working_folder": tmp_path, "tenant": "default"})
    rows = ({"prompt": f"{n}?", "completion": "y"} for n in range(30))
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    path = tmp_path / "chain.yaml"
    path.write_text(json.dumps({"name": "test", "nodes": [SOURCE, {"type": "trainer", "config": {}}]}))
    (file,) = check(CheckInput(files=(path,)), Context(settings, say=lambda _text: None)).files
    lines = [reason["line"] for reason in file.reasons if reason["code"] == "E-LIMIT"]
    assert len(lines) == 2, lines
    assert all("The tier professional allows it" in line for line in lines)


def alter(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"max_rows":1000,', b'"max_rows":9999,'))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def strip(path: Path) -> None:
    path.write_bytes(path.read_bytes().split(b"\n\n")[0] + b"\n")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (alter, "was altered"),
        (empty, "is not a signed note"),
        (strip, "is not a signed note"),
        (Path.unlink, "cannot be read"),
    ],
)
def test_an_altered_policy_lets_nothing_start(tmp_path: Path, damage: Callable[[Path], None], words: str) -> None:
    settings = sign(tmp_path, acme="enterprise")
    assert settings.limits_file is not None
    damage(settings.limits_file)
    resolved = resolve_chain(chain(SOURCE, trainer(), tenant="acme"), settings)
    (reason,) = list_limit_refusals(resolved, settings)
    assert words in reason.because
    shown: Limits = execute_operation("limits", build_request("limits", {}), Context(settings))
    assert words in limits_text(shown)


def test_a_policy_is_in_force_until_its_last_day(tmp_path: Path) -> None:
    settings = sign(tmp_path)
    assert load_policy(settings, datetime.date(2027, 11, 30)) is not None
    with pytest.raises(Conflict, match="expired on 2027-11-30"):
        load_policy(settings, datetime.date(2027, 12, 1))


def test_a_policy_of_another_key_is_refused(tmp_path: Path) -> None:
    settings = sign(tmp_path)
    (tmp_path / "other").mkdir()
    other = sign(tmp_path / "other")
    keys = {other.limits_key: "signed by another key", "": "limits_key is not", "x": "not a public key"}
    for key, words in keys.items():
        with pytest.raises(TrainyardError, match=words):
            load_policy(settings.model_copy(update={"limits_key": key}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "has format 2"),
        ({"default": "gold"}, "no tier 'gold'"),
        ({"tenants": {"acme": "gold"}}, "no tier 'gold'"),
        ({"tiers": []}, "tiers"),
        ({"tiers": [{"name": "free"}, {"name": "free"}]}, "two tiers"),
        ({"tiers": [{"name": "free", "max_row": 5}]}, "max_row"),
        ({"tiers": [{"name": "free", "backends": ["torchtune"]}]}, "backends"),
        ({"tiers": [{"name": "free", "features": ["everything"]}]}, "features"),
        ({"tiers": [{"name": "free", "max_epochs": -1}]}, "max_epochs"),
    ],
)
def test_a_policy_that_is_not_valid_is_not_signed(change: dict[str, object], words: str) -> None:
    policy = {"format": 1, "issuer": "us", "issued": "2026-01-01", "tiers": [{"name": "free"}], **change}
    with pytest.raises(TrainyardError, match=words) as refused:
        parse_policy(json.dumps(policy), "policy.yaml")
    assert refused.value.code == "E-LIMIT"


def test_a_tenant_sees_its_own_tier_alone(tmp_path: Path) -> None:
    settings = sign(tmp_path, acme="standard", globex="enterprise")
    context = Context(settings, caller=Caller("token", tenant="acme", remote=True))
    shown: Limits = execute_operation("limits", build_request("limits", {}), context)
    assert (shown.tier, shown.tenants, shown.file) == ("standard", {}, None)
    assert set(shown.features) == {feature.value for feature in Feature}
    with pytest.raises(NotFound):
        execute_operation("limits", build_request("limits", {"tenant": "globex"}), context)


def test_a_tenant_starts_no_more_trainings_than_its_workers(tmp_path: Path) -> None:
    settings = sign(tmp_path, acme="standard")
    context, index, now = Context(settings, say=lambda _text: None), open_index(settings), time.time()
    states = (JobState.RUNNING, JobState.COMPLETED, JobState.PAUSED, JobState.FAILED)
    index.put([make_row(number, tenant="acme", state=state) for number, state in enumerate(states)], now)
    index.note_try(now)
    index.note_success(now)
    require_free_worker("acme", context)
    with pytest.raises(Refused, match="1 trainings of the tenant acme are open") as refused:
        require_free_worker("acme", context, more=2)
    assert "The tier professional allows it" in refused.value.reasons[0].instead
    index.put([make_row(9, tenant="acme", state=JobState.PENDING)], now)
    with pytest.raises(Refused):
        require_free_worker("acme", context)


def test_of_starts_at_the_same_moment_one_gets_the_last_place(tmp_path: Path) -> None:
    settings = sign(tmp_path, acme="standard")
    context, index, now = Context(settings, say=lambda _text: None), open_index(settings), time.time()
    index.put([make_row(0, tenant="acme", state=JobState.RUNNING)], now)
    index.note_try(now)
    index.note_success(now)
    together = threading.Barrier(4)

    def start(number: int) -> str:
        together.wait()
        try:
            with lock_free_worker("acme", context):
                index.put([make_row(number, tenant="acme", state=JobState.PENDING)], now)
        except Refused as refused:
            return refused.what
        return "started"

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(start, range(1, 5)))
    assert sorted(answers) == ["2 trainings of the tenant acme are open."] * 3 + ["started"]
    paused = make_row(9, tenant="acme", state=JobState.PAUSED)
    with pytest.raises(Refused), lock_worker_of(paused, context):
        pass
    with lock_worker_of(paused | {"state": JobState.PENDING}, context):
        assert count_open("acme", context) == 2
