"""Rows on trainers: what each backend carries out, settings that exclude each other, adapters and controls."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.axes.latent import CoconutSettings, Latent
from trainyard.spec.axes.methods import (
    LOFTQ,
    AdapterSettings,
    FreezeSettings,
    LowRankSettings,
    Method,
    adapter_settings,
)
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.axes.rewards import EnvironmentReward
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import DistillSettings, DpoSettings, GrpoSettings, PpoSettings, PreferenceLoss, Stage
from trainyard.spec.axes.strategies import Strategy
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.compat.context import Match, NodeView, Row, join_words
from trainyard.spec.compat.evaluator_deployer import list_held_out_sets, list_unserved
from trainyard.spec.model_schema import read_setting
from trainyard.spec.training import TrainerConfig

WITHOUT_SHAPE = ("type", "profile", "ratio", "init")
"""Settings of an adapter method that change nothing of its shape."""
CONSTANT_SCHEDULES = tuple(schedule for schedule in Schedule if schedule.facts.constant)


def earlier(at: NodeView) -> TrainerConfig | None:
    """Return the trainer whose adapter this trainer takes over."""
    trainers = [node.config for node in at.sources(Port.ADAPTER)]
    return trainers[0] if trainers and isinstance(trainers[0], TrainerConfig) else None


def other_shape(config: TrainerConfig, at: NodeView) -> Match:
    """Return a continued adapter keeps its shape; each setting that says otherwise."""
    before = earlier(at)
    if before is None or config.adapter != "continue" or config.method.type is not before.method.type:
        return False
    pairs = [
        (setting, read_setting(config, setting), read_setting(before, setting))
        for setting in list_shape_settings(config)
    ]
    return [
        {"setting": setting, "name": setting.rpartition(".")[2], "old": old}
        for setting, new, old in pairs
        if new != old
    ]


def list_shape_settings(config: TrainerConfig) -> Iterator[str]:
    """Yield the settings that make the shape of an adapter."""
    yield from (f"method.{name}" for name in type(config.method).model_fields if name not in WITHOUT_SHAPE)


def find_stacked_trainer(config: TrainerConfig, at: NodeView) -> TrainerConfig | None:
    """Return the trainer of the earlier adapter, if this one is stacked on it or merged with it into one adapter."""
    return earlier(at) if config.adapter != "continue" and isinstance(config.method, AdapterSettings) else None


def no_sum(config: TrainerConfig, at: NodeView) -> Match:
    """Return the method of two whose adapters are not sums of low-rank matrices."""
    before = find_stacked_trainer(config, at)
    other = [method for method in (before.method, config.method) if not method.facts.summed] if before else []
    return bool(other) and {"method": other[0]}


def common_module(config: TrainerConfig, at: NodeView) -> Match:
    """Return a module that two adapters contain as a whole."""
    before = find_stacked_trainer(config, at)
    if before is None or no_sum(config, at):
        return False
    earlier_modules = adapter_settings(before.method).modules_to_save
    common = [module for module in adapter_settings(config.method).modules_to_save if module in earlier_modules]
    return bool(common) and {"module": common[0]}


def onto_no_whole_base(config: TrainerConfig, at: NodeView) -> Match:
    before = earlier(at)
    format = before.quantization if before is not None else None
    return config.adapter == "merge" and format is not None and not format.facts.mergeable and {"format": format}


def other_base(config: TrainerConfig, at: NodeView) -> Match:
    before = at.trainer()
    return before is not None and config.base_model != before.base_model and {"old": before.base_model}


def control_in_line(config: TrainerConfig, at: NodeView) -> Match:
    """Return a control that would start from the adapter of the very trainer that it is to be compared with."""
    before = at.trainer()
    if config.control is None or before is None or describe_objective(before) != describe_objective(config):
        return False
    return {"trainer": at.sources(Port.ADAPTER, Port.MODEL)[0].id}


def describe_objective(config: TrainerConfig) -> tuple[Stage, Latent | None]:
    """Return what a trainer and its control have in common."""
    technique = config.stage.technique
    return config.stage.type, technique.type if technique is not None else None


def broken_groups(config: TrainerConfig, _: NodeView) -> Match:
    """Completions that are drawn together and are not whole groups of those to one prompt."""
    if not isinstance(config.stage, GrpoSettings | PpoSettings) or not config.stage.rewards:
        return False
    hyper, group = config.hyperparameters, config.stage.num_generations
    rows = hyper.batch_size * hyper.gradient_accumulation * config.launch.processes * count_minibatches(config)
    return rows % group != 0 and {"drawn": rows, "group": group}


def count_minibatches(config: TrainerConfig) -> int:
    """Return the optimizer steps that share one pass over the sampled completions."""
    return config.stage.minibatches if isinstance(config.stage, PpoSettings) else 1


def draws_by_vllm(config: TrainerConfig) -> bool:
    """Return whether a vLLM server draws the completions that a trainer learns from."""
    rollouts = getattr(config.stage, "rollouts", None)
    return rollouts is not None and rollouts.engine == "vllm"


def unserved_policy(config: TrainerConfig, at: NodeView) -> Match:
    """Return what of a policy vLLM could not draw with as it is trained: it has the base, and one adapter on it."""
    method = config.method
    if not draws_by_vllm(config):
        return False
    if config.quantization is not None or method.facts.quantised:
        return {"what": f"the policy of method {method}: its base is quantized, and the server's would not be"}
    if not isinstance(method, AdapterSettings):
        return False
    if reason := list_unserved(TargetType.VLLM, method.type, method.modules_to_save):
        return {"what": reason[0]}
    if isinstance(method, LowRankSettings) and method.changes_base:
        return {"what": f"an adapter that begins with {method.init}: its base is another one"}
    return config.adapter != "continue" and earlier(at) is not None and {
        "what": f"two adapters together (`adapter: {config.adapter}`)"
    }  # fmt: skip


def without_metric(config: TrainerConfig, _: NodeView) -> Match:
    """Return the metrics that the stage reports, where the requested one is none of them."""
    evaluation, there = config.eval, config.stage.facts.eval_metrics
    return evaluation is not None and evaluation.metric not in there and {"there": join_words(there)}


def without_set(config: TrainerConfig, at: NodeView) -> Match:
    """Return a held-out set that no validator before the trainer makes."""
    if config.eval is None or config.eval.set is None:
        return False
    there = list_held_out_sets(at)
    if config.eval.set in there:
        return False
    return {"there": f"; there is {join_words(sorted(there))}" if there else ""}


def teaches_itself(config: TrainerConfig, at: NodeView) -> Match:
    """Return a teacher that is the student, before anything was trained."""
    teacher = config.stage.teacher_model
    return teacher is not None and teacher == config.base_model and at.trainer() is None


def unfit_init(config: TrainerConfig, _: NodeView) -> Match:
    """First weights that the method's base does not have."""
    method, format = config.method, config.quantization or Quantization.NF4
    if not isinstance(method, LowRankSettings) or not method.changes_base:
        return False
    if not method.facts.summed:
        return {
            "why": f"an adapter of method {method} is not a sum from which it could be subtracted",
            "use": "method lora",
        }
    if method.init != LOFTQ:
        why = "the base of qlora has no singular values that could be split off and stored in its few bits"
        return method.facts.quantised and {"why": why, "use": "init loftq, or method lora"}
    if not method.facts.quantised:
        return {"why": f"it corrects a quantised base, and that of method {method} is exact", "use": "method qlora"}
    why = f"a base in {format} has no full precision that it could be compared with"
    return not format.facts.mergeable and {"why": why, "use": "quantization nf4"}


def changes_base(config: TrainerConfig) -> bool:
    return isinstance(config.method, LowRankSettings) and config.method.changes_base


def rotates(config: TrainerConfig) -> bool:
    return isinstance(config.method, FreezeSettings) and config.method.interval is not None


TRAINER_ROWS = (
    Row(
        "script-unused", "R-SETTING-UNUSED", "trainer", "config.launch.script",
        lambda config, _: config.launch.script is not None and not config.backend.facts.runs_scripts,
        "The {config.backend} backend runs no script; the template {config.launch.script!r} would be ignored.",
        "Remove launch.script, or use backend script.",
    ),
    Row(
        "fp16-cpu", "R-DEVICE", "trainer", "config.hyperparameters.precision",
        lambda config, _: config.hyperparameters.precision is Precision.FP16 and config.device is Device.CPU,
        "Half precision is not applied on a CPU: the run would be fp32 under another name.",
        "Use precision auto, bf16 or fp32.",
    ),
    Row(
        "quant-method", "R-QUANTIZATION", "trainer", "config.quantization",
        lambda config, _: config.quantization is not None and not config.method.facts.quantised
        and config.quantization not in config.backend.facts.exports,
        "Method {config.method} trains on an unquantised base; {config.quantization} would be ignored.",
        "Use method qlora, or remove quantization.",
    ),
    Row(
        "quant-export", "R-QUANTIZATION", "trainer", "config.quantization",
        lambda config, _: config.method.type is Method.QLORA and config.quantization is not None
        and not config.quantization.facts.trains,
        "No adapter can be trained through a base in {config.quantization}.",
        "Use nf4, fp4 or int8.",
    ),
    Row(
        "kto-batch", "R-BATCH", "trainer", "config.hyperparameters.batch_size",
        lambda config, _: config.hyperparameters.batch_size < config.stage.facts.smallest_batch,
        "KTO estimates its reference point from other rows of the batch, and a batch of 1 has none.",
        "Use a batch_size of at least 2.",
    ),
    Row(
        "lora-layers", "R-ADAPTER", "trainer", "config.method.layers",
        lambda config, _: isinstance(config.method, AdapterSettings) and config.method.layers is not None
        and config.method.target_modules == "all-linear",
        "PEFT cannot pick layers when all linear modules are targeted by one word.",
        "Name the modules in method.target_modules, or use attention-only.",
    ),
    Row(
        "smoothing-loss", "R-SETTING-UNUSED", "trainer", "config.stage.label_smoothing",
        lambda config, _: isinstance(config.stage, DpoSettings) and config.stage.label_smoothing > 0
        and config.stage.loss is not PreferenceLoss.SIGMOID,
        "Label smoothing is defined for the sigmoid loss, not for {config.stage.loss}.",
        "Use `loss: sigmoid`, or remove label_smoothing.",
    ),
    Row(
        "schedule-free", "R-OPTIMIZER", "trainer", "config.hyperparameters.schedule",
        lambda config, _: config.hyperparameters.optimizer is Optimizer.SCHEDULE_FREE_ADAMW
        and not config.hyperparameters.schedule.facts.constant,
        "The optimizer schedule_free_adamw replaces the schedule; {config.hyperparameters.schedule} would fight it.",
        f"Use {' or '.join(CONSTANT_SCHEDULES)}.",
    ),
    Row(
        "galore-method", "R-OPTIMIZER", "trainer", "config.hyperparameters.optimizer",
        lambda config, _: config.hyperparameters.optimizer is Optimizer.GALORE
        and config.method.facts.adapter,
        "GaLore projects the gradients of whole weights; method {config.method} has none.",
        "Use method full or freeze, or optimizer adamw.",
    ),
    Row(
        "adapter-method", "R-ADAPTER", "trainer", "config.method",
        lambda config, at: (before := earlier(at)) is not None and config.adapter == "continue"
        and config.method.type is not before.method.type and {"old": before.method},
        "Method {config.method} cannot continue an adapter of method {old}.",
        "Use method {old}.", chained=True,
    ),
    Row(
        "adapter-shape", "R-ADAPTER", "trainer", "config.{setting}", other_shape,
        "The earlier adapter has {name} {old}, and a continued adapter keeps its shape.",
        "Write `{name}: {old}`, or `method: {config.method}` without settings.", chained=True,
    ),
    Row(
        "adapter-compose", "R-ADAPTER", "trainer", "config.adapter", no_sum,
        "With `adapter: {config.adapter}` both adapters are written as one, and an adapter of method {method} is not a "
        "sum of low-rank matrices.",
        "Use `adapter: continue`, or two adapters of method lora.", chained=True,
    ),
    Row(
        "adapter-compose-module", "R-ADAPTER", "trainer", "config.adapter", common_module,
        "With `adapter: {config.adapter}` both adapters are written as one, and both contain the whole module "
        "{module!r}: one of them would be lost.",
        "Use `adapter: continue`, or adapters that share no whole module.", chained=True,
    ),
    Row(
        "adapter-stack", "R-ADAPTER", "trainer", "config.adapter",
        lambda config, at: config.adapter == "stack" and not config.method.facts.adapter and bool(earlier(at)),
        "Method {config.method} moves the model's own weights, and nothing can be stacked on them.",
        "Use `adapter: merge`, which writes the earlier adapter into them first.", chained=True,
    ),
    Row(
        "adapter-merge", "R-ADAPTER", "trainer", "config.adapter", onto_no_whole_base,
        "The base of the earlier adapter is stored in {format}, and an adapter is merged in full precision only.",
        "Use `adapter: continue`, or train both on the base in full precision.", chained=True,
    ),
    Row(
        "adapter-none", "R-ADAPTER", "trainer", "config.adapter",
        lambda config, at: config.adapter != "continue" and earlier(at) is None,
        "`adapter: {config.adapter}` speaks of an earlier adapter, and none reaches this trainer.",
        "Remove `adapter`, or put a trainer with an adapter method before it.", chained=True,
    ),
    Row(
        "base-mismatch", "R-BASE-MISMATCH", "trainer", "config.base_model", other_base,
        "The trainer before it has the base {old!r}, this one {config.base_model!r}.",
        "Leave base_model out here, or write the same in both.", chained=True,
    ),
    Row(
        "reward-continue", "R-REWARD", "trainer", "needs",
        lambda config, at: (before := at.trainer()) is not None and before.stage.type is Stage.REWARD
        and not config.stage.facts.draws_groups,
        "The trainer before it makes a reward model, which gives scores and no text.",
        "Let this trainer need the trainer of the stage that it continues.", chained=True,
    ),
    Row(
        "eval-metric", "R-EVALUATION", "trainer", "config.eval.metric", without_metric,
        "Stage {config.stage} does not report {config.eval.metric}.", "Use the metric {there}.",
    ),
    Row(
        "eval-samples", "R-EVALUATION", "trainer", "config.eval.samples",
        lambda config, _: config.eval is not None and config.eval.samples > 0
        and config.stage.facts.head == "reward",
        "A reward model gives scores and no text, so it cannot answer held-out prompts.",
        "Remove `samples`.",
    ),
    Row(
        "eval-set", "R-EVALUATION", "trainer", "config.eval.set", without_set,
        "No set {config.eval.set} is held out of the data that reaches this trainer{there}.",
        "Use `share: 0.05` in place of the set, or a validator that makes it; unseen wordings need a qa generator with "
        "several wordings.", chained=True,
    ),
    Row(
        "control-stage", "R-CONTROL", "trainer", "config.control",
        lambda config, _: config.control == "shuffled_answers" and not config.stage.facts.has_control,
        "Stage {config.stage} has no answers to shuffle.", "Use the control with stage sft or dpo.",
    ),
    Row(
        "control-pauses", "R-CONTROL", "trainer", "config.control",
        lambda config, _: config.control == "pauses" and not isinstance(config.stage.technique, CoconutSettings),
        "Control pauses has the curriculum of technique coconut without its thoughts, and this trainer has no such "
        "technique.",
        "Give it the same `stage: {{type: sft, latent: {{type: coconut}}}}` as the trainer that it is compared with.",
    ),
    Row(
        "control-line", "R-CONTROL", "trainer", "needs", control_in_line,
        "The control would start from the adapter of {trainer!r}, with which it is to be compared.",
        "Give it the same `needs` as {trainer!r}.", chained=True,
    ),
    Row(
        "control-unused", "R-CONTROL", "trainer", "config.control",
        lambda config, at: config.control is not None and at.node.id not in at.view.used_controls,
        "No evaluator takes this control, so it would be trained for nothing.",
        "Remove `control` or the node, or name the node in the `needs` of an evaluator.", chained=True,
    ),
)  # fmt: skip
ROLLOUT_ROWS = (
    Row(
        "grpo-reward", "R-REWARD", "trainer", "config.stage.rewards",
        lambda config, _: isinstance(config.stage, GrpoSettings | PpoSettings) and not config.stage.rewards
        and config.launch.script is None,
        "Stage {config.stage} learns from rewards, and none is named.",
        "Name them, such as `stage: {{type: {config.stage}, rewards: [{{type: exact_match}}]}}`.",
    ),
    Row(
        "grpo-batch", "R-BATCH", "trainer", "config.hyperparameters.batch_size", broken_groups,
        "A step has {drawn} completions (batch_size × gradient_accumulation × processes), which is not a"
        " multiple of {group}.",
        "Make them a multiple of stage.num_generations, such as `batch_size: {group}`.",
    ),
    Row(
        "reward-model-none", "R-REWARD", "trainer", "config.stage.rewards",
        lambda config, at: config.stage.reads_scores and not at.sources(Port.REWARD),
        "Stage {config.stage} reads the scores of a reward model, and no trainer of stage reward is before it.",
        "Put a trainer of stage reward before it, or name another reward, such as exact_match.", chained=True,
    ),
    Row(
        "environment-none", "R-REWARD", "trainer", "config.stage.rewards",
        lambda config, _: getattr(config.stage, "environment", None) is None
        and any(isinstance(reward, EnvironmentReward) for reward in getattr(config.stage, "rewards", ())),
        "The reward of an environment is requested, and stage {config.stage} has none.",
        "Name it, such as `environment: {{type: calculator}}`, or another reward, such as exact_match.",
    ),
    Row(
        "rollouts-device", "R-DEVICE", "trainer", "config.stage.rollouts.engine",
        lambda config, _: draws_by_vllm(config) and config.device not in (Device.AUTO, Device.CUDA),
        "vLLM draws completions on a CUDA device, and this trainer has device {config.device}.",
        "Use `engine: native`, or device cuda.",
    ),
    Row(
        "rollouts-weights", "R-ADAPTER", "trainer", "config.method", unserved_policy,
        "A vLLM server next to the training does not serve {what}.",
        "Use method lora with `adapter: continue` or full, or `rollouts: {{engine: native}}`.", chained=True,
    ),
    Row(
        "rollout-alone", "R-LAUNCH", "trainer", "config.launch.strategy",
        lambda config, _: config.stage.facts.draws_groups and config.backend is BackendName.NATIVE
        and config.launch.strategy is not Strategy.SINGLE,
        "Stage {config.stage} of the native engine draws and scores completions in one process.",
        "Use strategy single, or backend trl for stage grpo.",
    ),
    Row(
        "rollout-checkpointing", "R-SETTING-UNUSED", "trainer", "config.hyperparameters.gradient_checkpointing",
        lambda config, _: config.stage.facts.draws_groups and config.backend is BackendName.NATIVE
        and config.hyperparameters.gradient_checkpointing,
        "Stage {config.stage} computes without dropout, in the mode in which transformers recomputes no activations.",
        "Remove gradient_checkpointing and lower batch_size; gradient_accumulation keeps the step.",
    ),
)  # fmt: skip
"""What completions of stages ppo and grpo are drawn by, for and in."""
TEACHER_ROWS = (
    Row(
        "distill-teacher", "R-BASE-MISMATCH", "trainer", "config.stage.teacher",
        lambda config, _: isinstance(config.stage, DistillSettings)
        and config.stage.teacher is None and config.stage.endpoint is None,
        "Stage distill imitates a teacher, and none is named.",
        "Name a model of the student's family, such as `stage: {{type: distill, teacher: Qwen/Qwen3-8B}}`.",
    ),
    Row(
        "distill-self", "R-BASE-MISMATCH", "trainer", "config.stage.teacher", teaches_itself,
        "The teacher {config.stage.teacher!r} is the model that is trained, so the student has nothing to learn.",
        "Name a larger model of the same family.", chained=True,
    ),
    Row(
        "distill-alone", "R-LAUNCH", "trainer", "config.launch.strategy",
        lambda config, _: config.stage.facts.compares_logits and config.launch.strategy is not Strategy.SINGLE,
        "Stage {config.stage} compares the logits of all tokens, which processes do not exchange.",
        "Use strategy single.",
    ),
)  # fmt: skip
"""Whom a distillation imitates."""
STATES_APART = (Optimizer.ADAMW, Optimizer.SGD)
"""Optimizers whose state of one weight can be dropped and begun again."""
CHANGING_ROWS = (
    Row(
        "init-base", "R-ADAPTER", "trainer", "config.method.init", unfit_init,
        "The adapter cannot begin with {config.method.init}: {why}.", "Use {use}, or `init: default`.",
    ),
    Row(
        "init-reference", "R-ADAPTER", "trainer", "config.method.init",
        lambda config, _: changes_base(config) and config.stage.needs_reference,
        "Stage {config.stage} compares with the base without the adapter, and with init {config.method.init} that is "
        "another model.",
        "Use `init: default`, or a loss without a reference.",
    ),
    Row(
        "init-earlier", "R-ADAPTER", "trainer", "config.method.init",
        lambda config, at: changes_base(config) and earlier(at) is not None,
        "An adapter of an earlier trainer is there already; init {config.method.init} is of the first one.",
        "Use `init: default` here.", chained=True,
    ),
    Row(
        "rope-adapter", "R-ADAPTER", "trainer", "config.rope",
        lambda config, _: config.rope is not None and config.method.facts.adapter,
        "An adapter is served on its base as it is, whose positions are other ones than those with {config.rope.type} "
        "scaling.",
        "Use method full or freeze, whose model has the scaling in its config.json, or a base that has it.",
    ),
    Row(
        "tokens-adapter", "R-ADAPTER", "trainer", "config.added_tokens",
        lambda config, _: bool(config.added_tokens) and config.method.facts.adapter,
        "An adapter is served on its base as it is, which has no rows for added tokens.",
        "Use method full, whose model and tokenizer have them, or add them to the base first.",
    ),
    Row(
        "tokens-frozen", "R-ADAPTER", "trainer", "config.added_tokens",
        lambda config, _: bool(config.added_tokens) and isinstance(config.method, FreezeSettings)
        and config.method.interval is None,
        "The embeddings of added tokens begin as a mean, and method freeze does not train embeddings.",
        "Use method full, or `method: {{type: freeze, interval: 20}}`.",
    ),
    Row(
        "blocks-alone", "R-LAUNCH", "trainer", "config.launch.strategy",
        lambda config, _: rotates(config) and config.launch.strategy is not Strategy.SINGLE,
        "With method.interval other blocks are trained every few steps, which processes do not exchange.",
        "Use strategy single, or remove interval.",
    ),
    Row(
        "blocks-optimizer", "R-OPTIMIZER", "trainer", "config.hyperparameters.optimizer",
        lambda config, _: rotates(config) and config.hyperparameters.optimizer not in STATES_APART,
        "With method.interval the states of a block are dropped and begun again, which "
        "{config.hyperparameters.optimizer} does not allow.",
        f"Use optimizer {' or '.join(STATES_APART)}, or remove interval.",
    ),
)  # fmt: skip
"""Adapters that begin with a part of the base, blocks that take turns, and bases that are changed first."""
