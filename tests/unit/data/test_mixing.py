"""Mixtures of sets: exact shares, one order for a seed, caps, and what happens when a set has no more rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.data.reading import Result, json_lines, read_all, settings_for
from tests.unit.data.validating import count_words
from trainyard.backends.job import TrainingJob
from trainyard.backends.rows import list_mixed_sets
from trainyard.data.mixing import draw_rows, share_rows
from trainyard.data.rows import TextRow
from trainyard.data.validation import validate
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import DataSourceConfig, HoldoutRules, Mixture, ValidatorConfig
from trainyard.spec.training import TrainerConfig
from trainyard.stores.artifacts import Reference
from trainyard.testing.tiny import TEXT, build_tokenizer
from trainyard.train.losses import cpt
from trainyard.train.progress import Counted
from trainyard.train.rows.tokens import encode_sft


def mixture(**sets: Any) -> Mixture:
    rules = {key: sets.pop(key) for key in ("rows", "exhausted", "seed") if key in sets}
    return Mixture(sets={name: {"path": "x.jsonl", **data_set} for name, data_set in sets.items()}, **rules)


def shares(mix: Mixture, **available: int) -> dict[str, int]:
    return {share.name: share.count for share in share_rows(mix, available)}


def test_rows_are_shared_by_weight_until_a_set_has_no_more() -> None:
    mix = mixture(a={"weight": 3}, b={"weight": 1})
    assert shares(mix, a=300, b=1000) == {"a": 300, "b": 100}
    assert shares(mix, a=1000, b=100) == {"a": 300, "b": 100}
    assert shares(mixture(a={"weight": 3}, b={}, rows=40), a=1000, b=1000) == {"a": 30, "b": 10}
    assert shares(mixture(a={"weight": 3}, b={}, rows=40), a=6, b=1000) == {"a": 6, "b": 2}


def test_the_others_continue_when_a_set_has_no_more() -> None:
    mix = mixture(a={"weight": 3}, b={}, c={}, rows=100, exhausted="continue")
    assert shares(mix, a=10, b=1000, c=1000) == {"a": 10, "b": 45, "c": 45}
    assert shares(mixture(a={}, b={}, exhausted="continue"), a=10, b=20) == {"a": 10, "b": 20}


def test_a_set_repeats_as_often_as_it_may() -> None:
    mix = mixture(a={"max_epochs": 3}, b={})
    assert shares(mix, a=10, b=100) == {"a": 30, "b": 30}
    turns, rows = draw_rows(share_rows(mix, {"a": 10, "b": 100}), seed=1)
    repeated = [row for turn, row in zip(turns.tolist(), rows.tolist(), strict=True) if turn == 0]
    assert [sorted(repeated[first : first + 10]) for first in (0, 10, 20)] == [list(range(10))] * 3
    assert repeated[:10] != repeated[10:20]


@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.tuples(st.integers(1, 50), st.integers(0, 40), st.integers(1, 3)), min_size=1
    ),
    st.one_of(st.none(), st.integers(1, 200)),
    st.sampled_from(["stop", "continue"]),
)
def test_shares_are_exact(sets: dict[str, tuple[int, int, int]], rows: int | None, exhausted: Any) -> None:
    rules = {name: {"weight": weight, "max_epochs": epochs} for name, (weight, _, epochs) in sets.items()}
    mix = mixture(**rules, rows=rows, exhausted=exhausted)
    set_shares = share_rows(mix, {name: there for name, (_, there, _) in sets.items()})
    total, whole = sum(share.count for share in set_shares), sum(share.weight for share in set_shares)
    assert all(0 <= share.count <= share.most for share in set_shares)
    assert rows is None or total <= rows
    if exhausted == "stop":
        assert all(abs(share.count - total * share.weight / whole) <= 1 for share in set_shares)
    else:
        assert total == min(sum(share.most for share in set_shares), rows if rows is not None else total)
    turns, _ = draw_rows(set_shares, seed=7)
    assert Counter(turns.tolist()) == Counter({n: share.count for n, share in enumerate(set_shares) if share.count})


def read_mix(folder: Path, name: str, **mix: Any) -> Result:
    (result,) = read_all(folder / name, settings_for(folder), mix=mix).values()
    return result


@pytest.fixture
def written(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        rows = [{"prompt": f"{name} {n}", "completion": "Yes."} for n in range(20)]
        (tmp_path / f"{name}.jsonl").write_text(json_lines(*rows) + ("{\n" if name == "b" else ""))
    return tmp_path


def test_a_mixture_is_one_set_that_follows_from_its_seed(written: Path) -> None:
    sets = {"chats": {"path": "a.jsonl", "weight": 2}, "docs": {"path": "b.jsonl", "max_rows": 6}}
    first = read_mix(written, "out1", sets=sets)
    again = read_mix(written, "out2", sets=sets)
    other = read_mix(written, "out3", sets=sets, seed=7)
    assert first.port is Port.SFT
    assert [row.source for row in first.rows] == [row.source for row in again.rows]
    assert [row.source for row in first.rows] != [row.source for row in other.rows]
    assert Counter(row.source.split("/")[0] for row in first.rows) == {"chats": 12, "docs": 6}
    assert first.rows[0].messages[0].content.startswith(("a ", "b "))
    chats, docs = (first.facts["mixture"][name] for name in ("chats", "docs"))
    assert (chats["available"], chats["rows"], chats["epochs"], chats["exhausted"]) == (20, 12, 0.6, False)
    assert (docs["available"], docs["rows"], docs["exhausted"], docs["set"]["read"]) == (6, 6, True, 6)
    assert first.facts["ended_by"] == "docs"
    assert first.facts["dropped"] == {"not_drawn": 8}


def test_sets_of_different_kinds_are_refused(written: Path) -> None:
    (written / "p.jsonl").write_text(json_lines({"prompt": "Why?", "chosen": "Because.", "rejected": "No."}))
    sets = {"chats": {"path": "a.jsonl"}, "pairs": {"path": "p.jsonl"}}
    with pytest.raises(InvalidInput, match="E-DATA-FORMAT: The sets of the mixture contain rows of different kinds"):
        read_mix(written, "out", sets=sets)
    assert len(read_mix(written, "named", sets=sets, port="sft").rows) == 2


def test_a_source_has_one_place_or_sets_or_a_mixture() -> None:
    with pytest.raises(ValueError, match="not two of them"):
        DataSourceConfig(path="a.jsonl", mix=mixture(a={}))
    with pytest.raises(ValueError, match="max_rows has no effect next to mix"):
        DataSourceConfig(mix=mixture(a={}), max_rows=5)
    with pytest.raises(ValueError, match="include and exclude have no effect"):
        DataSourceConfig(sql={"query": "SELECT 1", "database": "x"}, include=("*",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot fill 'adapter'"):
        Mixture(sets={"a": {"path": "x"}}, port="adapter")  # type: ignore[dict-item, arg-type]


def test_the_validator_counts_rows_and_tokens_of_each_set(written: Path) -> None:
    mixed = read_mix(written, "out", sets={"chats": {"path": "a.jsonl", "weight": 3}, "docs": {"path": "b.jsonl"}})
    source = Reference(
        uri=f"file://{written / 'out' / 'sft'}", sha256="0" * 64, kind=Port.SFT, rows=len(mixed.rows), facts=mixed.facts
    )
    config = ValidatorConfig(
        near_duplicates=None, decontaminate=0, holdout=HoldoutRules(documents=0.0, min_rows=0, wording=False)
    )
    checked = validate(config, source, written / "valid", tokens=count_words, report=lambda fraction, text: None)
    mixture = checked.facts["mixture"]
    assert {name: counts["rows"] for name, counts in mixture.items()} == {"chats": 20, "docs": 6}
    assert sum(counts["tokens"] for counts in mixture.values()) == checked.facts["tokens"]["kept"]
    assert mixture["chats"]["tokens"] > mixture["docs"]["tokens"] > 0


def test_the_ledger_of_a_training_counts_tokens_of_each_set(written: Path) -> None:
    """The account of a set is that of a training on this set alone, and all of them add up to the ledger."""
    sets = {"chats": {"path": "a.jsonl", "weight": 3}, "docs": {"path": "b.jsonl"}}
    mixed = read_mix(written, "out", sets=sets)
    folder = str(written / "out" / "sft")
    job = TrainingJob(config=TrainerConfig(), data={Port.SFT: folder}, base="tiny", locks=str(written))
    tokenizer = build_tokenizer([TEXT * 20])
    _, ledger = encode_sft(mixed.rows, tokenizer, 512)
    ledger.keep_sets(list_mixed_sets(job))
    assert set(ledger.sets) == {"chats", "docs"}
    for name, account in ledger.sets.items():
        _, alone = encode_sft([row for row in mixed.rows if row.source.startswith(f"{name}/")], tokenizer, 512)
        assert dict(account) == {"rows": alone.rows["read"], **alone.tokens()}
    assert sum(account["trained"] for account in ledger.sets.values()) == ledger.trained
    assert Counted(1, 1, 1).record(ledger)["data"]["sets"]["docs"]["trained"] == ledger.sets["docs"]["trained"]
    _, texts = cpt.encode([TextRow("a b c", source="docs/x:1"), TextRow("a", source="x:2")], tokenizer, TrainerConfig())
    assert texts.sets["docs"]["read"] > 1
    texts.keep_sets([])
    assert "sets" not in Counted(1, 1, 1).record(texts)["data"]
