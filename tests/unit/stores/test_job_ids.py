"""Ids of jobs, and what a list reads from a run's tags and parameters."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import orjson
from hypothesis import given
from hypothesis import strategies as st

from trainyard.stores.live.job_ids import (
    JOB_ID,
    derive_job_id,
    draw_job_id,
    find_continued_run,
    find_job_id,
    is_reserved,
    job_tags,
    name_run,
    read_chain_facts,
    read_facts,
)

RUN = "0190d3c2-1f2e-7a3b-8c4d-5e6f70819203"


def test_a_drawn_id_is_job_and_twelve_hex_digits() -> None:
    job_ids = {draw_job_id() for _ in range(1000)}
    assert len(job_ids) == 1000
    assert all(JOB_ID.fullmatch(job_id) for job_id in job_ids)


@given(st.uuids())
def test_a_derived_id_is_the_end_of_the_runs_and_the_same_each_time(run: UUID) -> None:
    first = derive_job_id(str(run))
    assert JOB_ID.fullmatch(first)
    assert run.hex.endswith(first.removeprefix("job-"))
    assert first == derive_job_id(str(run)) == find_job_id(str(run), ["job", "chain:a"])


def test_the_tag_of_a_run_wins_over_what_would_be_derived() -> None:
    assert find_job_id(RUN, ["mine", "job-00000000000a", "job"]) == "job-00000000000a"
    assert job_tags(RUN, ["job-00000000000a"]) == {"job", "job-00000000000a"}
    assert job_tags(RUN, ["mine"]) == {"job", "mine", "job-5e6f70819203"} == job_tags(RUN, job_tags(RUN, ["mine"]))


def test_a_run_without_a_trainer_is_named_by_its_own_id() -> None:
    assert name_run(RUN, ["chain:a"]) == RUN
    assert name_run(RUN, ["job"]) == "job-5e6f70819203"


def test_tags_that_say_what_a_run_is_are_reserved() -> None:
    reserved = ["job", "job-00000000000a", "tenant:acme", "trace:1", "continues:run"]
    assert [is_reserved(tag) for tag in reserved] == [True] * 5
    assert not any(map(is_reserved, ["jobs", "job-1", "chain:a", "project:tenant"]))


def test_a_retried_job_continues_the_run_of_its_tag() -> None:
    assert find_continued_run(["job", f"continues:{RUN}", "mine"]) == RUN
    assert find_continued_run(["job", "mine"]) == ""


def test_the_facts_of_a_job_are_in_any_of_its_spellings() -> None:
    full_job = {
        "job": {"dataset": {"path": "a"}, "stage": {"type": "dpo"}, "method": {"type": "lora"}, "backend": "trl"}
    }
    short_job = {"job": {"dataset": {"path": "a"}, "method": "dpo", "backend": "trl"}}
    expected_facts = {"tenant": "default", "stage": "dpo", "method": "lora", "backend": "trl", "base_model": ""}
    assert read_facts([], full_job) == read_facts([], short_job) == expected_facts


def test_the_facts_of_a_chain_are_those_of_its_last_trainer() -> None:
    first, last = {"type": "trainer", "config": {}}, {"type": "trainer", "config": {"base_model": "m", "stage": "cpt"}}
    chain = {"tenant": "acme", "nodes": [first, last, {"type": "evaluator"}]}
    expected_facts = {"tenant": "acme", "stage": "cpt", "method": "lora", "backend": "native", "base_model": "m"}
    assert read_facts([], {"spec": chain}) == read_facts([], {"spec": {"chain": chain}}) == expected_facts


def test_the_tag_says_whose_a_run_is() -> None:
    assert read_facts(["tenant:acme"], {"publish": {"tenant": "other"}})["tenant"] == "acme"
    assert read_facts([], {"publish": {"tenant": "other"}})["tenant"] == "other"


def test_parameters_that_nobody_can_read_leave_the_defaults() -> None:
    facts = read_facts(["tenant:acme"], {"job": {"stage": 7, "method": {"type": ["x"]}, "lora": "wide"}})
    assert facts["tenant"] == "acme"
    assert all(isinstance(fact, str) for fact in facts.values())


def test_the_resolved_chain_of_a_run_has_the_facts(tmp_path: Path) -> None:
    assert read_chain_facts(tmp_path) is None
    config = {"stage": {"type": "sft"}, "method": {"type": "qlora"}, "backend": "trl", "base_model": "m"}
    chain = {"tenant": "acme", "nodes": [{"type": "trainer", "config": config}]}
    (tmp_path / "chain.json").write_bytes(orjson.dumps(chain))
    expected_facts = {"tenant": "acme", "stage": "sft", "method": "qlora", "backend": "trl", "base_model": "m"}
    assert read_chain_facts(tmp_path) == expected_facts
    (tmp_path / "chain.json").write_bytes(b"{")
    assert read_chain_facts(tmp_path) is None
