"""Typed ports: what each node makes and takes, and from which earlier node."""

from __future__ import annotations

import pytest

from tests.unit.spec.chains import chain, links, list_row_names, node, reasons, resolve_nodes, source
from trainyard.spec.axes.data import DataFormat, Port
from trainyard.spec.chain import Source
from trainyard.spec.graph import check
from trainyard.spec.nodes import NODE_CONFIGS, SourceSet, ValidatorConfig
from trainyard.spec.ports import ROW_PORTS, Missing, Offer, PortNode, find_channel, kinds_of_set, merge, wire

UNKNOWN = (Port.SFT, Port.PREFERENCE, Port.LABELLED, Port.PROMPTS, Port.TEXT)


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("docs", (Port.DOCUMENTS,)),
        ("handbook.md", (Port.DOCUMENTS,)),
        ("book.pdf", (Port.DOCUMENTS,)),
        ("code.py", (Port.DOCUMENTS,)),
        ("archive.v2/notes", (Port.DOCUMENTS,)),
        ("rows.jsonl", UNKNOWN),
        ("rows.JSON", UNKNOWN),
        ("rows.ndjson", UNKNOWN),
        ("rows.parquet", UNKNOWN),
        ("rows.csv", UNKNOWN),
        ("rows.tsv", UNKNOWN),
        ("rows.arrow", UNKNOWN),
        ("rows.jsonl.gz", UNKNOWN),
        ("rows.jsonl.zst", UNKNOWN),
        ("rows.csv.bz2", UNKNOWN),
        ("rows.json.xz", UNKNOWN),
        ("notes.md.gz", (Port.DOCUMENTS,)),
        (".gz", (Port.DOCUMENTS,)),
    ],
)
def test_a_path_tells_what_it_may_hold(path: str, kinds: tuple[Port, ...]) -> None:
    assert kinds_of_set(SourceSet(path=path)) == kinds


def test_an_address_is_judged_by_its_path() -> None:
    assert kinds_of_set(SourceSet(url="https://host.example/rows.jsonl?sig=a.md")) == UNKNOWN
    assert kinds_of_set(SourceSet(url="https://host.example/page.html#rows.jsonl")) == (Port.DOCUMENTS,)


def test_a_repository_gives_documents() -> None:
    assert kinds_of_set(SourceSet(repository="project.json")) == (Port.DOCUMENTS,)


def test_a_named_format_decides() -> None:
    assert [name for name in DataFormat if not name.facts.ports] == [DataFormat.AUTO]
    assert kinds_of_set(SourceSet(path="docs", format=DataFormat.ALPACA)) == (Port.SFT,)
    assert kinds_of_set(SourceSet(path="rows.jsonl", format=DataFormat.DOCUMENTS)) == (Port.DOCUMENTS,)
    assert DataFormat.OPENAI.facts.ports == (Port.SFT, Port.PREFERENCE, Port.LABELLED)
    assert DataFormat.SHAREGPT.facts.ports == DataFormat.OPENAI.facts.ports
    single = {name: name.facts.ports for name in DataFormat if len(name.facts.ports) == 1}
    assert single == {
        DataFormat.ALPACA: (Port.SFT,),
        DataFormat.PROMPT_COMPLETION: (Port.SFT,),
        DataFormat.TOOL_CALLS: (Port.SFT,),
        DataFormat.PREFERENCE: (Port.PREFERENCE,),
        DataFormat.LABELLED: (Port.LABELLED,),
        DataFormat.PROMPTS: (Port.PROMPTS,),
        DataFormat.TEXT: (Port.TEXT,),
        DataFormat.DOCUMENTS: (Port.DOCUMENTS,),
    }


def test_the_six_nodes_in_a_line() -> None:
    resolved_chain = resolve_nodes(
        source("docs"), node("ai_generator"), node("validator"), node("trainer"), node("evaluator"), node("deployer")
    )
    assert resolved_chain.order == ("data-source", "ai-generator", "validator", "trainer", "evaluator", "deployer")
    assert [resolved_chain.node(name).produces for name in resolved_chain.order] == [
        (Port.DOCUMENTS,), (Port.SFT,), (Port.SFT,), (Port.ADAPTER,), (Port.REPORT,), (),
    ]  # fmt: skip
    assert links(resolved_chain, "data-source") == {}
    assert links(resolved_chain, "ai-generator") == {"documents": ["data-source.documents"]}
    assert links(resolved_chain, "validator") == {"documents": ["data-source.documents"], "sft": ["ai-generator.sft"]}
    assert links(resolved_chain, "trainer") == {"sft": ["validator.sft"]}
    assert links(resolved_chain, "evaluator") == {"sft": ["validator.sft"], "adapter": ["trainer.adapter"]}
    assert links(resolved_chain, "deployer") == {"adapter": ["trainer.adapter"], "report": ["evaluator.report"]}


def test_an_input_comes_from_the_nearest_earlier_node_that_makes_it() -> None:
    sets = {"sft": {"path": "a.jsonl"}, "preference": {"path": "b.jsonl"}}
    resolved_chain = resolve_nodes(node("data_source", sets=sets), node("trainer"), node("trainer", stage="dpo"))
    assert resolved_chain.node("data-source").produces == (Port.SFT, Port.PREFERENCE)
    assert links(resolved_chain, "trainer") == {"sft": ["data-source.sft"]}
    assert links(resolved_chain, "trainer-2") == {
        "preference": ["data-source.preference"],
        "adapter": ["trainer.adapter"],
    }


def test_sets_are_listed_in_the_order_of_the_ports_whatever_their_own() -> None:
    sets = {"preference": {"path": "b.jsonl"}, "sft": {"path": "a.jsonl"}, "documents": {"path": "docs"}}
    resolved_chain = resolve_nodes(node("data_source", sets=sets), node("validator"))
    assert resolved_chain.node("data-source").produces == (Port.DOCUMENTS, Port.SFT, Port.PREFERENCE)
    assert links(resolved_chain, "validator") == {
        "documents": ["data-source.documents"],
        "sft": ["data-source.sft"],
        "preference": ["data-source.preference"],
    }
    assert resolved_chain.node("validator").produces == (Port.SFT, Port.PREFERENCE)


def test_a_set_that_is_named_is_certain_even_if_its_file_is_not() -> None:
    resolved_chain = resolve_nodes(node("data_source", sets={"sft": {"path": "a.jsonl"}}), node("trainer"))
    assert links(resolved_chain, "trainer") == {"sft": ["data-source.sft"]}
    assert list_row_names(node("data_source", sets={"sft": {"path": "a.jsonl"}}), node("trainer", stage="dpo")) == [
        "port-preference"
    ]


def test_rows_of_unknown_kind_are_offered_on_every_port() -> None:
    resolved_chain = resolve_nodes(source("rows.jsonl"), node("validator"), node("trainer"))
    assert resolved_chain.node("data-source").produces == UNKNOWN
    assert resolved_chain.node("validator").produces == UNKNOWN
    assert links(resolved_chain, "validator") == {port.value: [f"data-source.{port.value}"] for port in UNKNOWN}
    assert links(resolved_chain, "trainer") == {"sft": ["validator.sft", "validator.preference"]}
    for stage, port in (("dpo", "preference"), ("kto", "labelled"), ("cpt", "text"), ("reward", "preference")):
        resolved_chain = resolve_nodes(source("rows.jsonl"), node("trainer", stage=stage, backend="native"))
        assert links(resolved_chain, "trainer") == {port: [f"data-source.{port}"]}


def test_a_stage_that_draws_takes_prompts_or_rows_with_answers() -> None:
    grpo = {"stage": {"type": "grpo", "rewards": [{"type": "exact_match"}]}, "backend": "trl"}
    grpo["hyperparameters"] = {"batch_size": 8}
    resolved_chain = resolve_nodes(source("rows.jsonl"), node("validator"), node("trainer", **grpo))
    assert links(resolved_chain, "trainer") == {
        "sft": ["validator.sft", "validator.preference"],
        "prompts": ["validator.prompts"],
    }
    resolved_chain = resolve_nodes(source("rows.jsonl", format="prompts"), node("trainer", **grpo))
    assert links(resolved_chain, "trainer") == {"prompts": ["data-source.prompts"]}
    assert list_row_names(source("rows.jsonl", format="prompts"), node("trainer", stage="sft")) == ["port-sft"]


def test_the_openai_format_may_hold_chats_pairs_or_labels() -> None:
    resolved_chain = resolve_nodes(source(format="openai"), node("trainer", stage="dpo"))
    assert links(resolved_chain, "trainer") == {"preference": ["data-source.preference"]}
    assert list_row_names(source(format="openai"), node("trainer", stage="cpt", backend="native")) == ["port-text"]


def test_pairs_offer_their_chosen_side_as_sft() -> None:
    resolved_chain = resolve_nodes(source(format="preference"), node("trainer"))
    assert links(resolved_chain, "trainer") == {"sft": ["data-source.preference"]}
    resolved_chain = resolve_nodes(
        source("docs"), node("ai_generator", template="preference", model="m"), node("trainer")
    )
    assert links(resolved_chain, "trainer") == {"sft": ["ai-generator.preference"]}


def test_rows_of_their_own_are_preferred_to_a_chosen_side() -> None:
    sets = {"sft": {"path": "a.jsonl"}}
    resolved_chain = resolve_nodes(node("data_source", sets=sets), source(format="preference"), node("trainer"))
    assert links(resolved_chain, "trainer") == {"sft": ["data-source.sft"]}
    resolved_chain = resolve_nodes(source("rows.jsonl"), source(format="preference"), node("trainer"))
    assert links(resolved_chain, "trainer") == {"sft": ["data-source.sft"]}


def test_only_an_sft_stage_takes_a_chosen_side() -> None:
    for stage in ("kto", "ppo", "cpt"):
        refusals = reasons(source(format="preference"), node("trainer", stage=stage, backend="native"))
        assert [reason.code for reason in refusals if reason.code.startswith("R-PORT")] != []


def test_plain_text_and_documents_both_serve_pretraining_and_the_nearer_wins() -> None:
    trainer = node("trainer", stage="cpt", backend="native")
    assert links(resolve_nodes(source("docs"), trainer), "trainer") == {"documents": ["data-source.documents"]}
    both = node("data_source", sets={"text": {"path": "a.jsonl"}, "documents": {"path": "docs"}})
    assert links(resolve_nodes(both, trainer), "trainer") == {"text": ["data-source.text"]}
    near = resolve_nodes(source("a.txt", format="text"), source("docs"), trainer)
    assert links(near, "trainer") == {"documents": ["data-source-2.documents"]}


def test_full_weights_are_a_model_and_hide_the_earlier_adapter() -> None:
    full = node("trainer", method="full", adapter="merge", backend="native")
    resolved_chain = resolve_nodes(source(), node("trainer"), full, node("deployer", unevaluated=True))
    assert resolved_chain.node("trainer-2").produces == (Port.MODEL,)
    assert links(resolved_chain, "trainer-2")["adapter"] == ["trainer.adapter"]
    assert links(resolved_chain, "deployer") == {"model": ["trainer-2.model"]}
    resolved_chain = resolve_nodes(
        source(), node("trainer", method="full"), node("trainer"), node("deployer", unevaluated=True)
    )
    assert links(resolved_chain, "trainer-2")["model"] == ["trainer.model"]
    assert links(resolved_chain, "deployer") == {"adapter": ["trainer-2.adapter"]}


def test_freeze_makes_a_model_too() -> None:
    assert resolve_nodes(source(), node("trainer", method="freeze", backend="native")).nodes[1].produces == (
        Port.MODEL,
    )


def control_chain() -> list[dict[str, object]]:
    return [
        source(),
        node("validator"),
        node("trainer", "tuned", ["validator"]),
        node("trainer", "shuffled", ["validator"], control="shuffled_answers"),
        node("evaluator", "judged", ["tuned", "shuffled"]),
        node("deployer", None, ["judged"]),
    ]


def test_only_the_evaluator_takes_a_control() -> None:
    resolved_chain = resolve_nodes(*control_chain())
    assert links(resolved_chain, "judged")["adapter"] == ["tuned.adapter", "shuffled.adapter*"]
    assert links(resolved_chain, "deployer") == {"adapter": ["tuned.adapter"], "report": ["judged.report"]}
    assert resolved_chain.node("shuffled").produces == (Port.ADAPTER,)
    assert resolved_chain.node("judged").inputs[Port.ADAPTER][1] == Source(
        node_id="shuffled", port=Port.ADAPTER, control=True
    )


def test_a_trainer_does_not_continue_a_control() -> None:
    nodes = control_chain()
    nodes.append(node("trainer", "further", ["shuffled"]))
    assert links(resolve_nodes(*nodes), "further") == {"sft": ["validator.sft", "validator.preference"]}


def test_a_whole_model_may_have_an_adapter_as_its_control() -> None:
    nodes = control_chain()
    nodes[2] = node("trainer", "tuned", ["validator"], method="full")
    inputs = links(resolve_nodes(*nodes), "judged")
    assert inputs["model"] == ["tuned.model"]
    assert inputs["adapter"] == ["shuffled.adapter*"]


def test_a_branch_with_several_needs_takes_the_nearest() -> None:
    resolved_chain = resolve_nodes(
        source("one.jsonl"),
        node("trainer", "start", ["data-source"]),
        node("data_source", "second", [], path="two.jsonl", format="alpaca"),
        node("trainer", "further", ["start", "second"]),
    )
    assert links(resolved_chain, "further") == {"sft": ["second.sft"], "adapter": ["start.adapter"]}


def test_of_equally_near_nodes_the_one_made_from_the_other_wins() -> None:
    resolved_chain = resolve_nodes(
        source(format="alpaca"),
        node("validator", "first", ["data-source"]),
        node("trainer", "tuned", ["data-source", "first"]),
        node("validator", "aside", ["tuned"]),
        node("trainer", "again", ["tuned", "aside"]),
        node("deployer", None, ["again", "tuned"], unevaluated=True),
    )
    assert links(resolved_chain, "tuned") == {"sft": ["first.sft"]}
    assert links(resolved_chain, "deployer")["adapter"] == ["again.adapter"]


def test_derivation_is_seen_over_several_nodes() -> None:
    line = [source(format="alpaca"), *(node("validator", f"v{n}") for n in range(4))]
    resolved_chain = resolve_nodes(*line, node("trainer", "tuned", ["data-source", "v3"]))
    assert links(resolved_chain, "tuned") == {"sft": ["v3.sft"]}
    resolved_chain = resolve_nodes(*line, node("trainer", "tuned", ["v3", "data-source"]))
    assert links(resolved_chain, "tuned") == {"sft": ["v3.sft"]}


def test_a_diamond_joins_without_ambiguity() -> None:
    resolved_chain = resolve_nodes(
        source(format="alpaca"),
        node("trainer", "left", ["data-source"]),
        node("validator", "right", ["data-source"]),
        node("evaluator", "judged", ["left", "right"]),
    )
    assert links(resolved_chain, "judged") == {"sft": ["right.sft"], "adapter": ["left.adapter"]}


def test_two_independent_makers_at_the_same_distance_are_refused() -> None:
    (reason,) = reasons(
        node("data_source", "one", path="a.jsonl", format="alpaca"),
        node("data_source", "two", [], path="b.jsonl", format="alpaca"),
        node("trainer", "tuned", ["one", "two"]),
    )
    assert reason.row == "port-two"
    assert reason.because == "The nodes 'one' and 'two' make sft and are equally near."


def test_a_tie_is_carried_on_to_the_node_that_takes_the_port() -> None:
    refusals = reasons(
        node("data_source", "one", path="docs"),
        node("data_source", "two", [], path="b.jsonl", format="alpaca"),
        node("data_source", "three", ["one", "two"], path="c.jsonl", format="alpaca"),
        node("data_source", "four", [], path="d.jsonl", format="alpaca"),
        node("data_source", "five", ["four"], path="more"),
        node("trainer", "tuned", ["three", "five"]),
    )
    assert refusals == []
    refusals = reasons(
        node("data_source", "one", path="a.jsonl", format="alpaca"),
        node("data_source", "two", [], path="b.jsonl", format="alpaca"),
        node("data_source", "join", ["one", "two"], path="docs"),
        node("trainer", "tuned", ["join"]),
    )
    assert [(reason.row, reason.node) for reason in refusals] == [("port-two", "tuned")]


def test_two_adapters_at_the_same_distance_are_refused_where_they_are_taken() -> None:
    refusals = reasons(
        source(format="alpaca"),
        node("trainer", "left", ["data-source"]),
        node("trainer", "right", ["data-source"]),
        node("deployer", None, ["left", "right"], unevaluated=True),
    )
    assert [(reason.row, reason.node) for reason in refusals] == [("port-two", "deployer")]
    assert "'left' and 'right' make adapter" in refusals[0].because


def test_what_is_missing_says_what_is_offered() -> None:
    (reason,) = reasons(source("docs"), node("trainer", stage="sft"))
    assert reason.because == "Stage sft learns from sft rows, and it is offered documents."
    (reason,) = reasons(node("trainer"))
    assert reason.because == "Stage sft learns from sft rows, and it is offered nothing."


def test_data_that_is_missing_after_a_control_is_told_as_missing() -> None:
    refusal_names = list_row_names(
        source(format="alpaca"),
        node("trainer", "shuffled", control="shuffled_answers"),
        node("trainer", "later", ["shuffled"], stage="dpo"),
    )
    assert refusal_names == ["control-unused", "port-preference"]
    refusal_names = list_row_names(source("docs"), node("trainer", control="shuffled_answers"), node("ai_generator"))
    assert refusal_names == ["port-sft", "control-unused"]


def test_an_evaluator_takes_rows_only_if_there_are_any() -> None:
    nodes = [source("docs"), node("trainer", stage="cpt", backend="native")]
    benchmarks = [{"name": "f1", "path": "tasks.jsonl"}]
    resolved_chain = resolve_nodes(*nodes, node("evaluator", benchmarks=benchmarks))
    assert links(resolved_chain, "evaluator") == {"adapter": ["trainer.adapter"]}


def test_a_validator_without_rows_takes_nothing() -> None:
    wiring = wire(
        [make_port_node("docs", "data_source", (), path="docs"), make_port_node("check", "validator", ("docs",))]
    )
    assert wiring.inputs["check"] == {}
    assert wiring.produces["check"] == ()
    assert wiring.missing == [Missing("check", ROW_PORTS, (Port.DOCUMENTS,))]


def make_port_node(node_id: str, kind: str, needs: tuple[str, ...], **config: object) -> PortNode:
    return PortNode(node_id, kind, NODE_CONFIGS[kind].model_validate(config), needs)


def test_nodes_whose_inputs_are_unknowable_are_not_blamed() -> None:
    unclear = PortNode("check", "validator", ValidatorConfig(), (), clear=False)
    assert wire([unclear]).missing == []


def test_needs_that_were_not_wired_are_left_out() -> None:
    assert wire([make_port_node("check", "evaluator", ("nowhere",))]).missing[0].offered == ()


def test_merging_keeps_the_nearest_offer_of_each_channel() -> None:
    first, two = Source(node_id="one", port=Port.SFT), Source(node_id="two", port=Port.SFT)
    near, far = Offer((first,), 1), Offer((two,), 2)
    assert merge([{"sft": near}, {"sft": far}], {}, {}) == {"sft": near}
    assert merge([{"sft": far}, {"sft": near}], {}, {}) == {"sft": near}
    assert merge([{"sft": near}], {}, {}) == {"sft": near}
    assert merge([], {}, {}) == {}
    assert merge([{"sft": near}, {"text": far}], {}, {}) == {"sft": near, "text": far}
    position = {"one": 0, "two": 1}
    both = merge([{"sft": near}, {"sft": Offer((two,), 1, certain=False)}], {"one": {}, "two": {}}, position)
    assert both == {"sft": Offer((first, two), 1, certain=False)}


def test_channels() -> None:
    assert find_channel(Port.ADAPTER) == find_channel(Port.MODEL) == "weights"
    assert [find_channel(port) for port in ROW_PORTS] == ["sft", "preference", "labelled", "prompts", "text"]


def test_ambiguity_is_told_once_for_ports_of_the_same_nodes() -> None:
    refusals = check(
        chain(
            node("data_source", "one", path="a.jsonl"),
            node("data_source", "two", [], path="b.jsonl"),
            node("validator", "v", ["one", "two"]),
        )
    )
    assert [reason.because for reason in refusals] == [
        "The nodes 'one' and 'two' make sft, preference, labelled, prompts, text and are equally near."
    ]


SCORED = {"type": "ppo", "rewards": [{"type": "reward_model"}]}
BOTH = {"sets": {"sft": {"path": "a.jsonl"}, "preference": {"path": "b.jsonl"}}}


def test_ppo_continues_the_policy_and_takes_the_reward_model_beside_it() -> None:
    nodes = [node("data_source", **BOTH), node("trainer"), node("trainer", stage="reward")]
    judging = node("evaluator", benchmarks=[{"name": "forgetting"}])
    resolved_chain = resolve_nodes(*nodes, node("trainer", stage=SCORED, hyperparameters={"batch_size": 8}), judging)
    assert links(resolved_chain, "trainer-2")["adapter"] == ["trainer.adapter"]
    assert links(resolved_chain, "trainer-3") == {
        "sft": ["data-source.sft"], "adapter": ["trainer.adapter"], "reward": ["trainer-2.adapter"],
    }  # fmt: skip
    assert links(resolved_chain, "evaluator")["adapter"] == ["trainer-3.adapter"]


def test_ppo_takes_no_reward_model_that_it_does_not_read() -> None:
    nodes = [node("data_source", **BOTH), node("trainer"), node("trainer", stage="reward")]
    exact = {"type": "ppo", "rewards": [{"type": "exact_match"}]}
    resolved_chain = resolve_nodes(*nodes, node("trainer", stage=exact, hyperparameters={"batch_size": 8}))
    assert links(resolved_chain, "trainer-3") == {"sft": ["data-source.sft"], "adapter": ["trainer.adapter"]}


def test_two_reward_models_that_are_equally_near_are_refused() -> None:
    scorers = [node("trainer", name, ["trainer"], stage="reward") for name in ("one", "two")]
    last = node("trainer", "last", ["one", "two"], stage=SCORED, hyperparameters={"batch_size": 8})
    assert "port-two" in list_row_names(node("data_source", **BOTH), node("trainer"), *scorers, last)


DOCUMENTS_AND_PAIRS = {"sets": {"documents": {"path": "docs"}, "preference": {"path": "b.jsonl"}}}


def test_a_generator_takes_the_reward_model_that_it_reads_and_nothing_behind_it_continues_it() -> None:
    nodes = [node("data_source", **DOCUMENTS_AND_PAIRS), node("trainer", stage="reward")]
    writer = node("ai_generator", model="m", best_of=3)
    resolved_chain = resolve_nodes(*nodes, writer, node("trainer"))
    assert links(resolved_chain, "ai-generator") == {
        "documents": ["data-source.documents"],
        "reward": ["trainer.adapter"],
    }
    assert links(resolved_chain, "trainer-2") == {"sft": ["ai-generator.sft"]}
    assert list_row_names(*nodes, node("ai_generator", model="m"), node("trainer")) == ["reward-continue"]


def test_two_generators_behind_each_other_read_the_same_reward_model() -> None:
    nodes = [node("data_source", **DOCUMENTS_AND_PAIRS), node("trainer", stage="reward")]
    writers = [node("ai_generator", model="m", best_of=3) for _ in range(2)]
    resolved_chain = resolve_nodes(*nodes, *writers, node("trainer"))
    assert links(resolved_chain, "ai-generator-2")["reward"] == ["trainer.adapter"]
    assert links(resolved_chain, "trainer-2") == {"sft": ["ai-generator-2.sft"]}


def test_behind_a_generator_that_chooses_a_trainer_continues_the_policy() -> None:
    sets = {**DOCUMENTS_AND_PAIRS["sets"], "sft": {"path": "a.jsonl"}}
    nodes = [node("data_source", sets=sets), node("trainer"), node("trainer", stage="reward")]
    resolved_chain = resolve_nodes(*nodes, node("ai_generator", model="m", best_of=3), node("trainer"))
    assert links(resolved_chain, "ai-generator")["reward"] == ["trainer-2.adapter"]
    assert links(resolved_chain, "trainer-3") == {"sft": ["ai-generator.sft"], "adapter": ["trainer.adapter"]}


def test_a_generator_is_refused_between_two_reward_models_only_if_it_reads_one() -> None:
    nodes = [node("data_source", **DOCUMENTS_AND_PAIRS)]
    nodes += [node("trainer", name, ["data-source"], stage="reward") for name in ("one", "two")]
    after = ["one", "two"]
    assert "port-two" in list_row_names(*nodes, node("ai_generator", "writer", after, model="m", best_of=2))
    assert "port-two" not in list_row_names(*nodes, node("ai_generator", "writer", after, model="m"))
    exact = {"type": "ppo", "rewards": [{"type": "exact_match"}]}
    both = {"sets": {"sft": {"path": "a.jsonl"}, **DOCUMENTS_AND_PAIRS["sets"]}}
    policy = [node("data_source", **both), node("trainer", "policy", ["data-source"])]
    scorers = [node("trainer", name, ["policy"], stage="reward") for name in after]
    last = node("trainer", "last", after, stage=exact, hyperparameters={"batch_size": 8})
    assert "port-two" not in list_row_names(*policy, *scorers, last)
