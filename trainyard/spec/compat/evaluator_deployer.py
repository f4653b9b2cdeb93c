"""Rows on evaluators and deployers: held-out sets, reports, and what a server can load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainyard.spec.axes.data import DATA_PORTS, GenerationTemplate, Port
from trainyard.spec.axes.methods import AdapterSettings, Method, find_rank
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.compat.context import Match, NodeView, Row, When, join_words
from trainyard.spec.nodes import (
    REWARD_BENCHMARKS,
    AiGeneratorConfig,
    DataSourceConfig,
    DeployerConfig,
    EvaluatorConfig,
    Target,
    ValidatorConfig,
)
from trainyard.spec.training import TrainerConfig

OWN_ROWS = ("forgetting",)
LM_EVAL_PREFIX = "lm_eval:"
RUBRIC = "judge_rubric"
JUDGED = ("judge", RUBRIC)
"""Benchmarks that bring their rows with them."""


SETS = ("unseen_wording", "unseen_documents")
"""The held-out sets that a validator can make."""
HELD_OUT_FILE = "heldout"
"""The set that a data source reads."""


SERVER_SETTINGS = ("url", "endpoint", "path_prefix")
"""Settings by which a server is reached, which a target without one does not read."""


def only_control(_: Any, at: NodeView) -> Match:
    missing = at.view.missing.get(at.node.id)
    return missing is not None and missing.only_control


def list_held_out_sets(at: NodeView) -> frozenset[str]:
    """Return the names of the sets that are held out of the data that reaches a node."""
    sets: set[str] = set()
    for port in DATA_PORTS & set(at.node.inputs):
        for node in at.sources(port):
            if isinstance(node.config, DataSourceConfig) and node.config.heldout is not None:
                sets.add(HELD_OUT_FILE)
            if isinstance(node.config, ValidatorConfig):
                sets |= {"unseen_documents"} if node.config.holdout.documents > 0 else set()
                keeps_wording = node.config.holdout.wording and multiple_wordings(at.at(node), port)
                sets |= {"unseen_wording"} if keeps_wording else set()
    return frozenset(sets)


def multiple_wordings(at: NodeView, port: Port) -> bool:
    """Return whether the rows of a validator have questions in more than one wording, which only a qa generator
    writes.
    """
    for node in at.sources(port):
        if isinstance(node.config, AiGeneratorConfig):
            return node.config.template is GenerationTemplate.QA and node.config.wordings > 1
        if isinstance(node.config, ValidatorConfig):
            return multiple_wordings(at.at(node), port)
    return False


def no_held_out_sets(config: EvaluatorConfig, at: NodeView) -> Match:
    lines = config.benchmarks
    has_rows = [line.path or line.name in OWN_ROWS or line.name.startswith(LM_EVAL_PREFIX) for line in lines]
    return not (has_rows and all(has_rows)) and not list_held_out_sets(at)


def set_not_there(config: EvaluatorConfig, at: NodeView) -> Match:
    """Return a benchmark on a set that is not held out, where others are."""
    there = list_held_out_sets(at)
    if not there:
        return False
    set_names = {f"benchmarks.{index}.set": str(line.set) for index, line in enumerate(config.benchmarks)}
    set_names["primary"] = (config.primary or "").partition("/")[2]
    absent = {where: name for where, name in set_names.items() if name in SETS and name not in there}
    return [{"where": where, "set": name, "there": join_words(sorted(there))} for where, name in absent.items()]


def primary_not_listed(config: EvaluatorConfig, _: NodeView) -> Match:
    name, slash, set_name = (config.primary or "").partition("/")
    fits = [line.name == name and (not slash or line.set in (set_name, None)) for line in config.benchmarks]
    if not config.primary or not fits or any(fits):
        return False
    return {"names": join_words(line.name for line in config.benchmarks)}


def unread_judge(config: EvaluatorConfig, _: NodeView) -> Match:
    """Return a judge, or its rubric, that no benchmark asks."""
    names = {line.name for line in config.benchmarks}
    if config.judge is None:
        return False
    if not names & set(JUDGED):
        return {"setting": "judge", "by": join_words(JUDGED)}
    return config.judge.rubric is not None and RUBRIC not in names and {"setting": "judge.rubric", "by": RUBRIC}


def judged_by_nobody(config: EvaluatorConfig, _: NodeView) -> Match:
    """Return a judged benchmark without what it needs."""
    judged = [line.name for line in config.benchmarks if line.name in JUDGED]
    if judged and config.judge is None:
        return {"name": judged[0], "needs": "judge"}
    return RUBRIC in judged and config.judge is not None and config.judge.rubric is None and {
        "name": RUBRIC, "needs": "judge.rubric"
    }  # fmt: skip


def other_report(_: Any, at: NodeView) -> Match:
    """Return the report is about another adapter than the one that is deployed."""
    reports, deployed = at.sources(Port.REPORT), at.sources(Port.ADAPTER, Port.MODEL)
    if not reports or not deployed:
        return False
    judged = at.at(reports[0]).sources(Port.ADAPTER, Port.MODEL)
    return bool(judged) and judged[0].id != deployed[0].id and {"judged": judged[0].id, "deployed": deployed[0].id}


def each_target(condition: Callable[[Target], bool]) -> When:
    """Match each target for which a condition is true."""
    return lambda config, _: [
        {"index": index, "target": target} for index, target in enumerate(config.targets) if condition(target)
    ]


def targets(condition: Callable[[Any, TrainerConfig], Match]) -> When:
    """Match each target for which a condition on it and on the trainer is true."""

    def when(config: Any, at: NodeView) -> Match:
        trainer, matches = at.trainer(), []
        for index, target in enumerate(config.targets if trainer else ()):
            if answer := condition(target, trainer):  # type: ignore[arg-type]
                arguments = answer if isinstance(answer, Mapping) else {}
                matches.append({"index": index, "target": target, "trainer": trainer, **arguments})
        return matches

    return when


def set_on(config: DeployerConfig, server: str, settings: Sequence[str]) -> Match:
    """Return each of the settings that is given to a target with this kind of server."""
    return [
        {"index": index, "target": target, "setting": name}
        for index, target in enumerate(config.targets)
        for name in settings
        if target.type.facts.server == server and getattr(target, name) is not None
    ]


def rank_too_high(target: Target, trainer: TrainerConfig) -> Match:
    limit, rank = target.max_lora_rank or target.type.facts.max_lora_rank, find_rank(trainer.method)
    return limit is not None and rank > limit and {"limit": limit, "rank": rank}


def list_unserved(type: TargetType, method: Method, whole_modules: Sequence[str]) -> list[str]:
    """Return what of an adapter a server of a type does not serve."""
    unsupported = [f"adapters of method {method}"] if method not in type.facts.methods else []
    if whole_modules and not type.facts.whole_modules:
        unsupported.append(f"adapters with whole modules ({join_words(whole_modules)})")
    return unsupported


def unserved_adapters(config: DeployerConfig, at: NodeView) -> Match:
    trainer = at.trainer()
    method = trainer.method if trainer is not None else None
    return isinstance(method, AdapterSettings) and [
        {"index": index, "target": target, "what": part} for index, target in enumerate(config.targets)
        for part in list_unserved(target.type, method.type, method.modules_to_save) if target.merged is None
    ]  # fmt: skip


def merges_nothing(target: Target, trainer: TrainerConfig) -> Match:
    """Return a merged model of a method that makes whole models."""
    return target.merged is not None and not trainer.method.facts.adapter


def repeated_registries(config: DeployerConfig, _: NodeView) -> Match:
    """Return each registry target but the last one, where one wants a merged model: the registry is one target."""
    listed_ones = [index for index, target in enumerate(config.targets) if target.type is TargetType.REGISTRY]
    wants_merged = any(config.targets[index].merged for index in listed_ones)
    return wants_merged and [{"index": index} for index in listed_ones[:-1]]


def takes_no_merged(target: Target) -> bool:
    return target.merged is not None and target.merged not in target.type.facts.merged


def before_is_reward(_: Any, at: NodeView) -> Match:
    trainer = at.trainer()
    return trainer is not None and trainer.stage.facts.head == "reward"


def base_of_this_chain(config: DeployerConfig, at: NodeView) -> Match:
    """Running servers, where the adapter belongs to a whole model that another trainer of the chain makes."""
    makers = at.sources(Port.ADAPTER)
    bases = at.at(makers[0]).sources(Port.MODEL) if makers else []
    if not bases:
        return False
    hot = [(index, target) for index, target in enumerate(config.targets) if target.type.facts.hot_load]
    return [{"index": index, "target": target, "made": bases[0].id} for index, target in hot]


def reads_text(config: EvaluatorConfig, at: NodeView) -> Match:
    """Return what of an evaluator reads text, where the trainer before it makes a reward model."""
    if not before_is_reward(config, at):
        return False
    uses = [(f"benchmarks.{index}.name", f"benchmark {line.name}") for index, line in enumerate(config.benchmarks)
             if line.name not in REWARD_BENCHMARKS]  # fmt: skip
    uses += [("quotes", "quotes")] if config.quotes else []
    uses += [("baseline", f"baseline {config.baseline}")] if config.baseline != "base" else []
    return [{"where": where, "what": use} for where, use in uses]


def scores_no_reward(config: EvaluatorConfig, at: NodeView) -> Match:
    if at.trainer() is None or before_is_reward(config, at):
        return False
    lines = enumerate(config.benchmarks)
    return [{"index": index, "name": line.name} for index, line in lines if line.name in REWARD_BENCHMARKS]


EVALUATOR_ROWS = (
    Row(
        "reward-evaluate", "R-REWARD", "evaluator", "config.{where}", reads_text,
        "The trainer before it makes a reward model, which gives scores and no text for {what}.",
        "Leave it out: held-out pairs are scored by reward_accuracy and mean_reward.", chained=True,
    ),
    Row(
        "reward-scores", "R-REWARD", "evaluator", "config.benchmarks.{index}.name", scores_no_reward,
        "Benchmark {name} reads the scores of a reward model, and the trainer before it makes none.",
        "Use pairwise_reward_accuracy, or train stage reward.", chained=True,
    ),
    Row(
        "control-alone", "R-CONTROL", "evaluator", "needs", only_control,
        "Only a control reaches the evaluator, and there is nothing to compare it with.",
        "Name the trainer without `control` in `needs` too.", chained=True,
    ),
    Row(
        "no-heldout", "R-EVALUATION", "evaluator", "config.benchmarks", no_held_out_sets,
        "No rows are held out for the evaluation: rows that training saw prove nothing.",
        "Put a validator before the trainer, or give every benchmark a path.", chained=True,
    ),
    Row(
        "no-set", "R-EVALUATION", "evaluator", "config.{where}", set_not_there,
        "No set {set} is held out; there is {there}.",
        "Use {there}, or let the validator make it; unseen wordings need a qa generator with several wordings.",
        chained=True,
    ),
    Row(
        "primary", "R-EVALUATION", "evaluator", "config.primary", primary_not_listed,
        "The primary metric {config.primary!r} is not among the benchmarks ({names}).",
        "Add it to the benchmarks, or name one of them.",
    ),
    Row(
        "role-unused", "R-SETTING-UNUSED", "evaluator", "config.role",
        lambda config, _: config.baseline == "base" and config.role is not None,
        "The evaluator compares with the base alone, so it does not read role {config.role!r}.",
        "Write `baseline: both` to compare with what is live on that role too, or remove role.",
    ),
    Row(
        "quoted-unused", "R-SETTING-UNUSED", "evaluator", "config.least_quoted",
        lambda config, _: bool(config.least_quoted) and not config.quotes,
        "The evaluator asks no questions, so it does not read least_quoted {config.least_quoted:g}.",
        "Give a number of questions by `quotes`, or remove least_quoted.", chained=True,
    ),
    Row(
        "judge-missing", "R-EVALUATION", "evaluator", "config.{needs}", judged_by_nobody,
        "The benchmark {name} needs {needs}, which is not given.",
        "Add it, such as `judge: {{endpoint: NAME, rubric: What a good answer has}}`, or remove the benchmark.",
    ),
    Row(
        "judge-unused", "R-SETTING-UNUSED", "evaluator", "config.{setting}", unread_judge,
        "No benchmark of this evaluator reads {setting}.", "Add a benchmark that does ({by}), or remove {setting}.",
    ),
)  # fmt: skip

DEPLOYER_ROWS = (
    Row(
        "control-deploy", "R-CONTROL", "deployer", "needs", only_control,
        "The only adapter that reaches the deployer is a control, trained on shuffled answers.",
        "Name the trainer without `control`, or its evaluator, in `needs`.", chained=True,
    ),
    Row(
        "unevaluated", "R-UNEVALUATED", "deployer", "config.unevaluated",
        lambda config, at: not config.unevaluated and not at.sources(Port.REPORT),
        "No evaluator is before the deployer, so there is no measurement of whether the adapter is better.",
        "Put an evaluator before it, or write `unevaluated: true`.", chained=True,
    ),
    Row(
        "few-rows-unused", "R-SETTING-UNUSED", "deployer", "config.few_rows",
        lambda config, at: config.few_rows == "allow" and not at.sources(Port.REPORT),
        "No evaluator is before the deployer, so there is no verdict that few rows could stop.",
        "Remove few_rows, or put an evaluator before the deployer.", chained=True,
    ),
    Row(
        "report-mismatch", "R-EVALUATION", "deployer", "needs", other_report,
        "The report judges {judged!r}, and {deployed!r} would be deployed.",
        "Evaluate {deployed!r}, or let the deployer need only the evaluator.", chained=True,
    ),
    Row(
        "reward-deploy", "R-REWARD", "deployer", "needs", before_is_reward,
        "The trainer before it makes a reward model, which gives scores and cannot answer prompts.",
        "Deploy the adapter of another stage.", chained=True,
    ),
    Row(
        "full-hotload", "R-TARGET", "deployer", "config.targets.{index}.type",
        targets(lambda target, trainer: target.type.facts.hot_load and not trainer.method.facts.adapter),
        "A server of type {target.type} loads adapters while it runs, and method {trainer.method} makes a whole model.",
        "Use target registry and start a server with the model, or train with method lora.", chained=True,
    ),
    Row(
        "target-adapter", "R-TARGET", "deployer", "config.targets.{index}.type", unserved_adapters,
        "A server of type {target.type} does not serve {what}.",
        "Train with method lora and without method.modules_to_save, or use target embedded.", chained=True,
    ),
    Row(
        "target-merged", "R-TARGET", "deployer", "config.targets.{index}.merged", each_target(takes_no_merged),
        "A target of type {target.type} does not take base and adapter as one model in {target.merged}.",
        "Leave merged out, or use target registry, llama_server (gguf) or mlx (safetensors).",
    ),
    Row(
        "target-merged-twice", "R-TARGET", "deployer", "config.targets.{index}.merged", repeated_registries,
        "The registry is listed again further down, and keeps one merged model of a version.",
        "List it once; `trainyard adapters merge` writes the model in the other format, too.",
    ),
    Row(
        "target-merged-whole", "R-TARGET", "deployer", "config.targets.{index}.merged", targets(merges_nothing),
        "Method {trainer.method} makes a whole model, so there is no adapter to merge.",
        "Leave merged out, or train with method lora.", chained=True,
    ),
    Row(
        "rank-server", "R-TARGET", "deployer", "config.targets.{index}.max_lora_rank", targets(rank_too_high),
        "The adapter has rank {rank}, and the server takes at most {limit}.",
        "Start the server with --max-lora-rank {rank} and write `max_lora_rank: {rank}`, or use method.rank {limit}.",
        chained=True,
    ),
    Row(
        "target-base-mismatch", "R-BASE-MISMATCH", "deployer", "config.targets.{index}.base_model",
        targets(lambda target, trainer: target.base_model is not None and target.base_model != trainer.base_model),
        "The server has the base {target.base_model!r}, and the adapter is trained on {trainer.base_model!r}.",
        "Use a server with {trainer.base_model!r}, or train on {target.base_model!r}.", chained=True,
    ),
    Row(
        "base-made", "R-BASE-MISMATCH", "deployer", "config.targets.{index}.type", base_of_this_chain,
        "The adapter belongs to the model that {made!r} makes, and a running server of type {target.type} has another.",
        "Train {made!r} with an adapter method such as lora, or use target registry.", chained=True,
    ),
    Row(
        "target-url", "R-TARGET", "deployer", "config.targets.{index}.url",
        each_target(lambda target: target.type.facts.needs_address and target.url is None and target.endpoint is None),
        "A {target.type} target is reached at its address, and none is given.",
        "Add `url:`, such as http://127.0.0.1:8000, or `endpoint:` with the name of an endpoint in trainyard.toml.",
    ),
    Row(
        "target-endpoint-url", "R-ENDPOINT", "deployer", "config.targets.{index}.url",
        each_target(lambda target: target.url is not None and target.endpoint is not None),
        "The endpoint {target.endpoint!r} has its own address, and its key goes to no other.",
        "Remove url to reach the endpoint with its key, or remove endpoint to reach that address without a key.",
    ),
    Row(
        "target-setting-unused", "R-SETTING-UNUSED", "deployer", "config.targets.{index}.{setting}",
        lambda config, _: set_on(config, "none", SERVER_SETTINGS),
        "A registry target is a folder of this machine and no server; {setting} would be ignored.",
        "Remove {setting}, or use the type of the server that is meant, such as vllm.",
    ),
    Row(
        "target-own", "R-TARGET", "deployer", "config.targets.{index}.{setting}",
        lambda config, _: set_on(config, "started", ("url", "endpoint")),
        "A server of type {target.type} takes adapters when it starts, so the deployer starts one for each version.",
        "Leave {setting} out, or use target vllm.",
    ),
    Row(
        "role-twice", "R-TARGET", "deployer", "config.role",
        lambda config, at: at.view.roles[config.tenant, config.role] > 1,
        "Several deployers of this chain switch {config.tenant}/{config.role}; the last to finish would win.",
        "Give each deployer its own role.", chained=True,
    ),
)  # fmt: skip
