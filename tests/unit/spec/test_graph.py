"""Ids, edges, order, defaults and the digest."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.spec.chains import (
    chain,
    cpu_seconds,
    list_row_names,
    measure_slowness,
    node,
    reasons,
    resolve_nodes,
    source,
)
from trainyard.errors import Refused
from trainyard.spec.axes.data import GeneratorKind, Port
from trainyard.spec.axes.methods import Method
from trainyard.spec.chain import ChainSpec, ResolvedChain, ResolvedNode, digest
from trainyard.spec.graph import check, cycle_reason, find_cycles, resolve
from trainyard.spec.load.files import load_chain
from trainyard.spec.training import Hyperparameters, TrainerConfig, resolve_method, resolve_trainer


def ids(resolved_chain: ResolvedChain) -> list[str]:
    return [node.id for node in resolved_chain.nodes]


def get_config(resolved_chain: ResolvedChain, node_id: str) -> Any:
    return resolved_chain.node(node_id).config


# Ids


def test_an_id_is_the_type_with_a_number_from_the_second_on() -> None:
    resolved_chain = resolve_nodes(source(), node("validator"), node("validator"), node("validator"))
    assert ids(resolved_chain) == ["data-source", "validator", "validator-2", "validator-3"]


def test_numbers_step_over_ids_that_are_taken() -> None:
    resolved_chain = resolve_nodes(source(), node("validator"), node("validator", "validator-2"), node("validator"))
    assert ids(resolved_chain) == ["data-source", "validator", "validator-2", "validator-3"]
    resolved_chain = resolve_nodes(source(), node("validator", "validator"), node("validator"))
    assert ids(resolved_chain) == ["data-source", "validator", "validator-2"]


def test_two_nodes_with_one_id() -> None:
    refusals = reasons(source(), node("trainer", "one"), node("trainer", "one"), node("trainer", "one"))
    assert [reason.line() for reason in refusals] == [
        "E-SPEC-GRAPH one.id: 3 nodes have the id 'one'. Instead: Give each node its own id."
    ]


# Edges and order


def test_nodes_without_needs_follow_the_node_above() -> None:
    resolved_chain = resolve_nodes(
        source(), node("validator"), node("trainer", None, ["data-source"]), node("validator", "last")
    )
    assert [node.needs for node in resolved_chain.nodes] == [(), ("data-source",), ("data-source",), ("trainer",)]


def test_needs_are_told_once() -> None:
    resolved_chain = resolve_nodes(source(), node("validator", None, ["data-source", "data-source"]))
    assert resolved_chain.node("validator").needs == ("data-source",)


def test_order_follows_the_edges_and_not_the_list() -> None:
    resolved_chain = resolve_nodes(
        node("trainer", "last", ["check"]), node("validator", "check", ["rows"]),
        node("data_source", "rows", [], path="a.jsonl"),
    )  # fmt: skip
    assert ids(resolved_chain) == ["last", "check", "rows"]
    assert resolved_chain.order == ("rows", "check", "last")


def test_an_unknown_need() -> None:
    (reason,) = reasons(source(), node("trainer", None, ["data-sorce"]))
    assert reason.line() == (
        "E-SPEC-GRAPH trainer.needs: There is no node with the id 'data-sorce'. Instead: Did you mean 'data-source'?"
    )
    (reason,) = reasons(source(), node("trainer", None, ["zzz"]))
    assert reason.instead == "Write the id of another node: data-source, trainer."


def test_a_node_that_needs_itself() -> None:
    (reason,) = reasons(source(), node("trainer", "t", ["t", "data-source"]))
    assert reason.line() == ("E-SPEC-GRAPH t.needs: The node 't' needs itself. Instead: Remove 't' from its needs.")


def test_a_circle_is_shown() -> None:
    (reason,) = reasons(
        source(), node("validator", "a", ["c"]), node("validator", "b", ["a"]), node("validator", "c", ["b"])
    )
    assert reason.node == "b"
    assert reason.because == "The nodes wait for each other in a circle: b → c → a → b."
    assert reason.instead == "Remove 'a' from the needs of 'b', or another link of the circle."


def test_each_circle_is_told_and_what_hangs_on_it_is_not_blamed() -> None:
    refusals = reasons(
        source(),
        node("validator", "a", ["b"]), node("validator", "b", ["a"]),
        node("validator", "c", ["d"]), node("validator", "d", ["c"]),
        node("trainer", "t", ["a"]), node("evaluator", None, ["t"]),
        node("trainer", "bad", ["d"], backend="trl", method="oft"),
    )  # fmt: skip
    assert [(reason.code, reason.node) for reason in refusals] == [
        ("E-SPEC-GRAPH", "b"), ("E-SPEC-GRAPH", "d"), ("R-BACKEND-SETTING", "bad"),
    ]  # fmt: skip


def test_a_long_circle_is_shortened() -> None:
    seven = cycle_reason([f"n{index}" for index in range(7)])
    assert seven.because.endswith("n0 → n1 → n2 → n3 → n4 → n5 → n6 → n0.")
    eight = cycle_reason([f"n{index}" for index in range(8)])
    assert eight.because.endswith("n0 → n1 → n2 → n3 → n4 → n5 → … 2 more → n0.")


def test_cycles_are_disjoint() -> None:
    assert find_cycles({"a": ["b"], "b": ["a"], "c": ["a", "b"]}) == [["b", "a"]]
    assert find_cycles({"a": ["x", "b"], "b": ["a"]}) == [["b", "a"]]
    assert find_cycles({}) == []


def test_resolve_raises_every_reason() -> None:
    with pytest.raises(Refused, match=r"R-PORT: The spec was refused for 2 reasons") as refused:
        resolve(chain(node("trainer", backend="trl", method="oft")))
    assert [reason.row for reason in refused.value.reasons] == ["port-sft", "backend-setting"]


def test_a_spec_object_is_taken_like_its_value() -> None:
    value = chain(source(), node("trainer"))
    spec = ChainSpec.model_validate(value)
    assert resolve(spec) == resolve(value)
    assert check(spec) == check(value) == []


# Size


def make_line(count: int) -> list[dict[str, Any]]:
    body = [node("ai_generator") if index % 2 else node("validator") for index in range(count - 3)]
    return [source("docs"), *body[1:], node("validator"), node("trainer"), node("evaluator")]


@pytest.mark.slow
def test_ten_thousand_nodes_take_two_seconds_at_most() -> None:
    text = json.dumps(chain(*make_line(10_000)))
    assert len(resolve(load_chain(text)).order) == 10_000
    bound = 2 * measure_slowness()
    assert cpu_seconds(lambda: resolve(load_chain(text)), within=bound) < bound


@pytest.mark.slow
def test_a_ladder_of_diamonds_takes_no_longer() -> None:
    nodes = [source(format="alpaca"), node("validator", "a0", ["data-source"])]
    for index in range(1, 1_000):
        before = f"a{index - 1}"
        nodes += [
            node("trainer", f"t{index}", [before]), node("validator", f"v{index}", [before]),
            node("validator", f"a{index}", [f"t{index}", f"v{index}"]),
        ]  # fmt: skip
    assert resolve(chain(*nodes)).node("a999").inputs[Port.SFT][0].node_id == "v999"
    bound = 2 * measure_slowness()
    assert cpu_seconds(lambda: resolve(chain(*nodes)), within=bound) < bound


@pytest.mark.slow
def test_a_circle_of_ten_thousand_nodes() -> None:
    nodes = [node("validator", f"v{index}", [f"v{(index + 1) % 10_000}"]) for index in range(10_000)]
    assert list_row_names(*nodes) == ["E-SPEC-GRAPH"]
    bound = 2 * measure_slowness()
    assert cpu_seconds(lambda: list_row_names(*nodes), within=bound) < bound


# Defaults


def test_a_generator_without_a_model_extracts_by_rule() -> None:
    resolved_chain = resolve_nodes(source("docs"), node("ai_generator"))
    assert get_config(resolved_chain, "ai-generator").engine is GeneratorKind.EXTRACTIVE
    resolved_chain = resolve_nodes(source("docs"), node("ai_generator", model="m"))
    assert get_config(resolved_chain, "ai-generator").engine is None
    resolved_chain = resolve(chain(source("docs"), node("ai_generator", engine="local")), "org/base")
    assert get_config(resolved_chain, "ai-generator").model == "org/base"
    assert get_config(resolved_chain, "ai-generator").engine is GeneratorKind.LOCAL
    assert (
        resolve_nodes(source("docs"), node("ai_generator", engine="extractive")).digest
        == resolve_nodes(source("docs"), node("ai_generator")).digest
    )


def test_a_deployer_takes_the_tenant_of_its_chain() -> None:
    nodes = source(), node("trainer"), node("deployer", unevaluated=True)
    assert get_config(resolve_nodes(*nodes), "deployer").tenant == "default"
    assert get_config(resolve_nodes(*nodes, tenant="guests"), "deployer").tenant == "guests"
    nodes = source(), node("trainer"), node("deployer", unevaluated=True, tenant="own")
    assert get_config(resolve_nodes(*nodes, tenant="guests"), "deployer").tenant == "own"


def test_a_trainer_without_a_base_model_takes_the_setting() -> None:
    value = chain(source(), node("trainer"))
    assert get_config(resolve(value), "trainer").base_model == "starter"
    assert get_config(resolve(value, "org/base"), "trainer").base_model == "org/base"


def test_a_later_trainer_takes_over_base_and_shape() -> None:
    first = node("trainer", base_model="org/one", method={"type": "lora", "profile": "classic"})
    resolved_chain = resolve_nodes(source(), first, node("trainer", stage="dpo"))
    later = get_config(resolved_chain, "trainer-2")
    assert later.base_model == "org/one"
    assert later.method == get_config(resolved_chain, "trainer").method
    assert later.method.rank == 8
    resolved_chain = resolve_nodes(source(), first, node("trainer", adapter="stack"))
    assert get_config(resolved_chain, "trainer-2").method.rank == 32
    resolved_chain = resolve_nodes(source(), node("trainer", method="full", base_model="org/one"), node("trainer"))
    assert get_config(resolved_chain, "trainer-2").base_model == "org/one"
    assert get_config(resolved_chain, "trainer-2").method.rank == 32


def test_a_shape_of_its_own_is_not_taken_over() -> None:
    first = node("trainer", method={"type": "lora", "rank": 16})
    nodes = source(), first, node("trainer", method={"type": "lora", "rank": 8}, adapter="stack")
    assert get_config(resolve_nodes(*nodes), "trainer-2").method.rank == 8


def test_a_validator_counts_with_the_tokenizer_of_its_trainer() -> None:
    nodes = source(), node("validator"), node("validator"), node("trainer", base_model="org/one")
    resolved_chain = resolve_nodes(*nodes)
    assert (
        get_config(resolved_chain, "validator").tokenizer
        == get_config(resolved_chain, "validator-2").tokenizer
        == "org/one"
    )
    assert get_config(resolve_nodes(source(), node("validator")), "validator").tokenizer == "starter"
    nodes = source(), node("validator"), node("validator", tokenizer="org/own"), node("trainer", base_model="org/one")
    assert get_config(resolve_nodes(*nodes), "validator").tokenizer == "org/own"
    nodes = (
        source(), node("validator"), node("trainer", "b", ["validator"], base_model="org/b"),
        node("trainer", "c", ["validator"], base_model="org/c"),
    )  # fmt: skip
    assert get_config(resolve_nodes(*nodes), "validator").tokenizer == "org/b"


@pytest.mark.parametrize(
    ("stage", "method", "base", "rate"),
    [
        ("sft", "lora", "org/base", 2e-4),
        ("sft", "full", "org/base", 2e-5),
        ("dpo", "lora", "org/base", 1e-5),
        ("dpo", "full", "org/base", 1e-6),
        ("sft", "lora", "starter", 3e-3),
        ("dpo", "lora", None, 1.5e-4),
        ("reward", "lora", "starter", 1e-4),
    ],
)
def test_a_learning_rate_is_filled_by_stage_method_and_base(
    stage: str, method: str, base: str | None, rate: float
) -> None:
    config = get_config(
        resolve_nodes(source(), node("trainer", stage=stage, method=method, base_model=base)), "trainer"
    )
    assert config.hyperparameters.learning_rate == rate
    assert config.hyperparameters.epochs == (10 if base == "starter" and stage == "sft" else 3)
    assert config.hyperparameters.max_steps is None


def test_what_is_said_is_kept() -> None:
    hyper = {"learning_rate": 1e-3, "max_steps": 7}
    hyperparameters = get_config(
        resolve_nodes(source(), node("trainer", hyperparameters=hyper)), "trainer"
    ).hyperparameters
    assert (hyperparameters.learning_rate, hyperparameters.max_steps, hyperparameters.epochs) == (1e-3, 7, None)


def test_profiles_fill_what_is_left_out() -> None:
    platform = resolve_method(Method.LORA.settings())
    assert (platform.rank, platform.alpha, platform.dropout, platform.target_modules) == (32, 64, 0, "all-linear")
    classic = resolve_method(Method.LORA.settings(profile="classic"))
    assert (classic.rank, classic.alpha, classic.dropout) == (8, 16, 0.05)
    assert classic.target_modules == ("q_proj", "v_proj")
    nightly = resolve_method(Method.LORA.settings(profile="nightly", alpha=8))
    assert (nightly.rank, nightly.alpha, len(nightly.target_modules or ())) == (16, 8, 7)
    assert resolve_method(Method.LORA.settings(rank=10)).alpha == 20
    assert resolve_method(Method.LORA.settings(profile="classic", rank=10, alpha=3, dropout=0.2)).dropout == 0.2


def test_resolving_twice_changes_nothing() -> None:
    once = resolve_trainer(TrainerConfig(hyperparameters=Hyperparameters(epochs=1)), "base")
    assert resolve_trainer(once, "other") == once


# The resolved chain and its digest


def test_a_resolved_chain_is_stored_and_read_back() -> None:
    resolved_chain = resolve_nodes(
        source("docs"), node("ai_generator"), node("validator"), node("trainer"), node("evaluator")
    )
    again = ResolvedChain.model_validate_json(resolved_chain.model_dump_json())
    assert again == resolved_chain
    assert isinstance(again.node("trainer").config, TrainerConfig)
    assert ResolvedNode.model_validate(resolved_chain.nodes[0]) == resolved_chain.nodes[0]
    with pytest.raises(KeyError):
        resolved_chain.node("nowhere")


VALUE = chain(
    source("docs"), node("ai_generator", count=7), node("validator"),
    node("trainer", hyperparameters={"learning_rate": 0.0002, "epochs": 3}), node("evaluator"), node("deployer"),
    name="one",
)  # fmt: skip


def test_one_meaning_has_one_digest() -> None:
    expected = resolve(VALUE).digest
    assert len(expected) == 64
    spellings = [
        json.dumps(VALUE), yaml.safe_dump(VALUE), yaml.safe_dump(VALUE, default_flow_style=True),
        json.dumps(VALUE, sort_keys=True), json.dumps(VALUE).replace("0.0002", "2e-4"),
        json.dumps(VALUE).replace('"epochs": 3', '"epochs": 3.0'),
        json.dumps({**VALUE, "tenant": "default", "description": "words do not change what is done"}),
        yaml.safe_dump(VALUE).replace("learning_rate: 0.0002", "learning_rate: 2e-4"),
        json.dumps(VALUE).replace('"hyperparameters"', '"hyperparams"'),
    ]  # fmt: skip
    assert {resolve(load_chain(text)).digest for text in spellings} == {expected}
    written_out = resolve(VALUE)
    explicit = chain(
        *({"type": node.type, "id": node.id, "needs": list(node.needs), "config": node.config.model_dump(mode="json")}
          for node in written_out.nodes), name="one",
    )  # fmt: skip
    assert resolve(explicit).digest == expected
    explicit["nodes"] = explicit["nodes"][::-1]
    assert resolve(explicit).digest == expected


@pytest.mark.parametrize(
    "change",
    [
        {"name": "two"},
        {"tenant": "guests"},
        {"nodes": [*VALUE["nodes"][:-1]]},
        {"nodes": [source("doc"), *VALUE["nodes"][1:]]},
        {"nodes": [*VALUE["nodes"][:1], node("ai_generator", count=8), *VALUE["nodes"][2:]]},
        {"nodes": [*VALUE["nodes"][:2], node("validator", "other"), *VALUE["nodes"][3:]]},
        {"nodes": [*VALUE["nodes"][:-1], node("deployer", None, ["evaluator", "trainer"])]},
    ],
)
def test_another_meaning_has_another_digest(change: dict[str, Any]) -> None:
    assert resolve({**VALUE, **change}).digest != resolve(VALUE).digest


def test_the_default_base_model_is_part_of_the_meaning() -> None:
    assert resolve(VALUE, "org/base").digest != resolve(VALUE).digest


def test_digests_are_canonical() -> None:
    assert digest({"b": 1, "a": 2.0}) == digest({"a": 2, "b": 1})
    assert digest(ChainSpec.model_validate(VALUE)) == digest(ChainSpec.model_validate(VALUE).model_dump(mode="json"))


@st.composite
def dags(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Sources and validators with random edges, listed in a random order."""
    count = draw(st.integers(1, 12))
    nodes = []
    for index in range(count):
        needs = draw(st.lists(st.integers(0, index - 1), max_size=3, unique=True)) if index else []
        if needs and draw(st.booleans()):
            nodes.append(node("validator", f"n{index}", [f"n{need}" for need in needs]))
        else:
            nodes.append(node("data_source", f"n{index}", [f"n{need}" for need in needs], path="a.jsonl"))
    return draw(st.permutations(nodes))


@given(dags())
@settings(max_examples=60, deadline=None)
def test_every_order_respects_the_needs(nodes: list[dict[str, Any]]) -> None:
    refusals = reasons(*nodes)
    assert {reason.row for reason in refusals} <= {"port-two"}
    if not refusals:
        order = resolve_nodes(*nodes).order
        assert sorted(order) == sorted(node["id"] for node in nodes)
        position = {node_id: index for index, node_id in enumerate(order)}
        assert all(position[need] < position[node["id"]] for node in nodes for need in node["needs"])


@given(dags())
@settings(max_examples=60, deadline=None)
def test_inputs_come_from_earlier_nodes_that_make_them(nodes: list[dict[str, Any]]) -> None:
    if reasons(*nodes):
        return
    resolved_chain = resolve_nodes(*nodes)
    above: dict[str, set[str]] = {}
    for node_id in resolved_chain.order:
        needs = resolved_chain.node(node_id).needs
        above[node_id] = set(needs).union(*(above[need] for need in needs))
        for sources in resolved_chain.node(node_id).inputs.values():
            assert all(source.node_id in above[node_id] for source in sources)
            assert all(source.port in resolved_chain.node(source.node_id).produces for source in sources)


@given(dags(), st.randoms())
@settings(max_examples=40, deadline=None)
def test_listing_order_and_key_order_do_not_change_the_digest(nodes: list[dict[str, Any]], random: Any) -> None:
    if reasons(*nodes):
        return
    shuffled = [dict(random.sample(list(node.items()), len(node))) for node in nodes]
    random.shuffle(shuffled)
    assert resolve_nodes(*shuffled).digest == resolve_nodes(*nodes).digest


@given(dags(), st.integers(0, 11), st.integers(0, 11))
@settings(max_examples=40, deadline=None)
def test_an_edge_back_is_a_circle_or_a_chain(nodes: list[dict[str, Any]], start: int, end: int) -> None:
    by_id = {node["id"]: node for node in nodes}
    first, second = f"n{min(start, end)}", f"n{max(start, end)}"
    if first in by_id and second in by_id:
        by_id[first]["needs"] = [*by_id[first]["needs"], second]
        refusal_names = set(list_row_names(*nodes))
        assert refusal_names <= {"E-SPEC-GRAPH", "port-two", "port-rows"}
        if first == second:
            assert "E-SPEC-GRAPH" in refusal_names


def decide_by_rule(generator: dict[str, object], base: str, **evaluator: object) -> tuple[object, ...]:
    """Epochs, questions, required share and tolerance of a chain on pairs of a generator."""
    chain = resolve_nodes(
        {"type": "data_source", "config": {"path": "docs"}}, {"type": "ai_generator", "config": generator},
        {"type": "validator"}, {"type": "validator"}, {"type": "trainer", "config": {"base_model": base}},
        {"type": "evaluator", "config": evaluator},
    )  # fmt: skip
    trainer, config = chain.node("trainer").config, chain.node("evaluator").config
    return trainer.hyperparameters.epochs, config.quotes, config.least_quoted, config.tolerance


def test_pairs_that_are_taken_by_rule_set_epochs_questions_and_tolerance() -> None:
    assert decide_by_rule({}, "starter") == (10.0, 20, 0.2, 0.5)
    assert decide_by_rule({"engine": "extractive"}, "models/other") == (3.0, 20, 0.2, None)
    assert decide_by_rule({"model": "writer"}, "starter") == (10.0, 0, None, None)
    assert decide_by_rule({}, "starter", quotes=0, tolerance=0.1) == (10.0, 0, None, 0.1)
    assert decide_by_rule({}, "starter", quotes=7, least_quoted=0.5) == (10.0, 7, 0.5, 0.5)
    assert decide_by_rule({}, "starter", benchmarks=[{"name": "f1"}]) == (10.0, 0, None, None)
