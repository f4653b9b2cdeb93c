"""The templates: a short form each, and the chain that it describes.

A template's core nodes are fixed. The switches under `steps` insert the others, visibly: what runs is always the chain
that `trainyard plan` prints. To add a template: a model with a `build` method and a row in `TEMPLATES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field

from trainyard.spec import nodes
from trainyard.spec.axes.axis import MainFloat, MainInt, Strict
from trainyard.spec.axes.data import GenerationTemplate, GeneratorKind, Port
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import PreferenceLoss, Stage, StageSettings
from trainyard.spec.chain import ChainSpec
from trainyard.spec.money import MaxSpend
from trainyard.spec.nodes import (
    Columns,
    DataSourceConfig,
    DocumentsPath,
    Name,
    RepositoryPath,
    RowsPath,
    SourceSet,
    Url,
    is_empty,
)
from trainyard.spec.roles import role_of_place
from trainyard.spec.training import EngineSettings, Hyperparameters, Tracker, TrainerConfig

CODE_FILES = ("**/*.py", "**/*.js", "**/*.ts", "**/*.go", "**/*.rs", "**/*.java", "**/*.c", "**/*.h", "**/*.cpp")

RELATIVE = "a relative path starts where the command, or for a form `trainyard up`, was called."
ON_TOP = "rows for the evaluation come on top."


COLUMNS = "Field of a row -> the column that contains it, such as prompt: question_text."


class Form(Strict):
    """A part of a form. Keys are written as they are shown, `validate` too."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True, serialize_by_alias=True
    )


class TrainingForm(Form):
    """How the adapter is trained."""

    method: Method = Field(Method.LORA, title="Method", description="Which weights are trainable.")
    epochs: MainFloat | None = Field(
        None,
        gt=0,
        le=1000,
        title="Epochs",
        description="Passes over the rows; empty: 10 for the starter, else 3.",
    )
    max_steps: MainInt | None = Field(
        None, ge=1, le=10_000_000, title="Steps", description="Optimizer steps; wins over epochs."
    )
    learning_rate: MainFloat | None = Field(
        None, gt=0, le=1, title="Learning rate", description="Peak; empty takes the method's vetted value."
    )
    schedule: Schedule = Field(Schedule.LINEAR, title="Schedule", description="How the learning rate changes.")
    warmup_ratio: float = Field(0.03, ge=0, le=1, title="Warm-up", description="Share of the steps at the start.")
    optimizer: Optimizer = Field(Optimizer.ADAMW, title="Optimizer", description="How a step is made.")
    batch_size: MainInt = Field(4, ge=1, le=4096, title="Batch size", description="Rows per micro-batch.")
    gradient_accumulation: MainInt = Field(
        1, ge=1, le=4096, title="Gradient accumulation", description="Micro-batches per optimizer step."
    )
    rank: MainInt = Field(32, ge=1, le=256, title="Rank", description="Rank of a low-rank adapter; alpha is twice it.")
    max_length: MainInt = Field(
        512, ge=8, le=1_048_576, title="Longest row", description="In tokens; longer rows are dropped."
    )
    seed: int = Field(42, ge=0, le=2**31 - 1, title="Seed")
    trackers: tuple[Tracker, ...] = Field(
        (), title="Trackers", description="Where steps are logged as well; each needs its package."
    )


class AlignmentForm(Form):
    """How preferences are learned (direct preference optimisation)."""

    loss: PreferenceLoss = Field(PreferenceLoss.SIGMOID, title="Loss")
    beta: float = Field(0.1, gt=0, le=100, title="Beta", description="How strongly the model is kept near its start.")
    epochs: MainFloat = Field(1, gt=0, le=1000, title="Epochs")
    max_steps: MainInt | None = Field(
        None, ge=1, le=10_000_000, title="Steps", description="Optimizer steps; wins over epochs."
    )
    learning_rate: MainFloat | None = Field(None, gt=0, le=1, title="Learning rate")
    batch_size: MainInt = Field(4, ge=1, le=4096, title="Batch size")


class RewardForm(Form):
    """How the reward model is trained on the preferences."""

    epochs: MainFloat = Field(1, gt=0, le=1000, title="Epochs")
    max_steps: MainInt | None = Field(
        None, ge=1, le=10_000_000, title="Steps", description="Optimizer steps; wins over epochs."
    )
    learning_rate: MainFloat | None = Field(None, gt=0, le=1, title="Learning rate")
    batch_size: MainInt = Field(4, ge=1, le=4096, title="Batch size")


class DrawingForm(Form):
    """How completions are drawn, and how often a step learns from them."""

    completions: int = Field(4, ge=2, le=1024, title="Completions", description="Of each prompt.")
    max_completion_length: int = Field(128, ge=1, le=1_048_576, title="Longest completion", description="In tokens.")
    max_steps: MainInt = Field(200, ge=1, le=10_000_000, title="Steps", description="Optimizer steps.")
    learning_rate: MainFloat | None = Field(None, gt=0, le=1, title="Learning rate")
    batch_size: MainInt = Field(
        8, ge=1, le=4096, title="Batch size", description="Completions of a step; a multiple of those of a prompt."
    )


class PpoForm(DrawingForm):
    """How the policy is trained against the reward model (proximal policy optimisation)."""

    kl_coef: float = Field(
        0.05, ge=0, le=1000, title="KL", description="How strongly the model is kept near its start."
    )


class TargetForm(Form):
    """One place where the adapter has to answer."""

    type: Literal["registry", "embedded", "vllm"] = Field("registry", title="Type")
    url: Url | None = Field(None, title="Address", description="Of the server; needed for vllm.")


class PublishForm(Form):
    """Under which name the adapter is registered, and where it has to answer."""

    tenant: Name = Field("default", title="Tenant")
    role: Name | None = Field(
        None, title="Role", description="The adapter becomes TENANT/ROLE/vN; empty: named after the data."
    )
    targets: tuple[TargetForm, ...] = Field((TargetForm(),), title="Targets")
    unevaluated: bool = Field(False, title="Without evaluation", description="Deploy even if `evaluate` is off.")
    baseline: Literal["base", "live", "both"] = Field(
        "both",
        title="Compared with",
        description="The base model, the version that is live, or both.",
    )
    few_rows: Literal["stop", "allow"] = Field(
        "stop", title="Few rows", description="allow: deploy what is better on fewer rows than a verdict needs."
    )
    tolerance: float | None = Field(
        None, ge=0, le=1, title="Tolerance", description="Share by which metrics besides the primary may be worse."
    )
    quotes: int | None = Field(
        None,
        ge=0,
        le=1000,
        title="Questions",
        description="Held-out questions that all models answer, to count quotes; empty: 20 where pairs are taken from "
        "the text by rule, else 0.",
    )
    least_quoted: float | None = Field(
        None,
        ge=0,
        le=1,
        title="Quoted",
        description="Share of those answers that have to contain the right one; empty: 0.2 where pairs are taken from "
        "the text by rule, else 0.",
    )


class GrpoForm(DrawingForm):
    """How the model is trained against the verifier (group relative policy optimisation)."""

    completions: int = Field(8, ge=2, le=1024, title="Completions", description="Of each prompt.")


Validate = Annotated[
    bool,
    Field(alias="validate", title="Validate", description="Filter, remove duplicates and set evaluation rows aside."),
]
Evaluate = Annotated[bool, Field(title="Evaluate", description="Compare with the base model on held-out rows.")]
Deploy = Annotated[bool, Field(title="Deploy", description="Register the adapter and switch the targets.")]
Control = Annotated[
    bool, Field(title="Control", description="Train a second adapter on shuffled answers to compare with.")
]


class DeploySteps(Form):
    """Which further nodes the chain has."""

    deploy: Deploy = True
    control: Control = False


class EvaluateSteps(Form):
    """Which further nodes the chain has."""

    evaluate: Evaluate = True
    deploy: Deploy = True
    control: Control = False


class Steps(Form):
    """Which further nodes the chain has, in their order."""

    validate_rows: Validate = True
    evaluate: Evaluate = True
    deploy: Deploy = True
    control: Control = False


class PolicySteps(Form):
    """Which further nodes the chain has, in their order."""

    validate_rows: Validate = True
    evaluate: Evaluate = True
    deploy: Deploy = True


Count = Annotated[
    int, Field(ge=1, le=10_000_000, title="Rows", description=f"Rows to train on, all wordings counted; {ON_TOP}")
]
Writer = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=256,
        title="Model that writes",
        description="Model that writes the pairs; empty: they are taken from the text by rule.",
    ),
]
BaseModelName = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=512,
        title="Base model",
        description="Folder or Hub name of the model to train; empty: the default of the settings.",
        json_schema_extra={"widget": "model"},
    ),
]
Publish = Annotated[PublishForm, Field(description="Under which name it is registered, and where it has to answer.")]


class QaPipeline(Form):
    """Questions and answers from documents, and an adapter that learned them."""

    documents: DocumentsPath = Field(title="Documents", description=f"File or folder to learn; {RELATIVE}")
    count: Count = 200
    model: Writer = None
    wordings: int = Field(
        3,
        ge=1,
        le=8,
        title="Wordings",
        description="Wordings of each question; with `validate` the last is kept from training and tests what was "
        "learned.",
    )
    base_model: BaseModelName = None
    training: TrainingForm = TrainingForm()
    publish: Publish = PublishForm()
    max_spend: MaxSpend = None
    steps: Steps = Field(Steps(), description="Which further nodes the chain has.")

    def build(self) -> ChainSpec:
        writer = generator(self, GenerationTemplate.QA, wordings=self.wordings)
        checks = [validator(self)] if self.steps.validate_rows else []
        return finished("qa-pipeline", self, DataSourceConfig(path=self.documents), writer, *checks, trainer(self))


class SetColumns(Form):
    """The columns of the data sets of a form."""

    sft: Columns = Field({}, title="Of the examples", description=COLUMNS)
    preference: Columns = Field({}, title="Of the preferences", description=COLUMNS)


SetColumnsField = Annotated[SetColumns, Field(json_schema_extra={"widget": "columns"})]


def maps_nothing(columns: SetColumns) -> bool:
    """Return whether the columns have the names of their fields, so that a dump leaves them out."""
    return not (columns.sft or columns.preference)


class AlignmentPipeline(Form):
    """Supervised fine-tuning, then direct preference optimisation of the same adapter."""

    sft: RowsPath = Field(title="Examples", description=f"Data set of instructions and answers; {RELATIVE}")
    preference: RowsPath = Field(
        title="Preferences", description=f"Data set of chosen and rejected answers; {RELATIVE}"
    )
    columns: SetColumnsField = Field(SetColumns(), title="Columns", description=COLUMNS, exclude_if=maps_nothing)
    max_rows: int | None = Field(
        None, ge=1, le=10**12, title="Rows", description="Rows read of each data set; empty: all."
    )
    base_model: BaseModelName = None
    training: TrainingForm = Field(TrainingForm(), description="How the adapter is trained on the examples.")
    alignment: AlignmentForm = Field(AlignmentForm(), description="How it then learns the preferences.")
    publish: Publish = PublishForm()
    max_spend: MaxSpend = None
    steps: Steps = Field(Steps(), description="Which further nodes the chain has.")

    def build(self) -> ChainSpec:
        sets = sets_of(self, max_rows=self.max_rows)
        checks = [validator(self)] if self.steps.validate_rows else []
        first, alignment = trainer(self), self.alignment
        settings = {name: getattr(alignment, name) for name in ("epochs", "max_steps", "learning_rate", "batch_size")}
        stage = Stage.DPO.settings(loss=alignment.loss, beta=alignment.beta)
        hyperparameters = first.hyperparameters.model_copy(update=settings)
        second = first.model_copy(update={"stage": stage, "hyperparameters": hyperparameters})
        return finished("alignment-pipeline", self, DataSourceConfig(sets=sets), *checks, first, second)


class Rlhf(Form):
    """Supervised fine-tuning, a reward model of the same adapter, and PPO with its scores."""

    sft: RowsPath = Field(title="Examples", description=f"Data set of instructions and answers; {RELATIVE}")
    preference: RowsPath = Field(
        title="Preferences", description=f"Data set of chosen and rejected answers; {RELATIVE}"
    )
    columns: SetColumnsField = Field(SetColumns(), title="Columns", description=COLUMNS, exclude_if=maps_nothing)
    base_model: BaseModelName = None
    training: TrainingForm = Field(TrainingForm(), description="How the adapter is trained on the examples.")
    reward: RewardForm = Field(RewardForm(), description="How the reward model learns the preferences.")
    ppo: PpoForm = Field(PpoForm(), description="How the adapter then learns from the reward model.")
    publish: Publish = PublishForm()
    max_spend: MaxSpend = None
    steps: PolicySteps = Field(PolicySteps(), description="Which further nodes the chain has.")

    def build(self) -> ChainSpec:
        sets = sets_of(self)
        checks = [validator(self)] if self.steps.validate_rows else []
        first = trainer(self)
        scorer = after(first, Stage.REWARD.settings(), self.reward)
        drawing = {
            "rewards": [{"type": "reward_model"}],
            "num_generations": self.ppo.completions,
            "max_completion_length": self.ppo.max_completion_length,
            "kl_coef": self.ppo.kl_coef,
        }
        policy = after(first, Stage.PPO.settings(**drawing), self.ppo)
        return finished("rlhf", self, DataSourceConfig(sets=sets), *checks, first, scorer, policy)


def sets_of(form: AlignmentPipeline | Rlhf, max_rows: int | None = None) -> dict[Port, SourceSet]:
    """Return the examples and the preferences of a form, as the sets of a data source."""
    return {
        Port.SFT: SourceSet(path=form.sft, columns=form.columns.sft, max_rows=max_rows),
        Port.PREFERENCE: SourceSet(path=form.preference, columns=form.columns.preference, max_rows=max_rows),
    }


class Grpo(Form):
    """Supervised fine-tuning, then GRPO with a verifier that compares final answers."""

    rows: RowsPath = Field(
        title="Rows", description=f"Data set of questions with answers that can be checked; {RELATIVE}"
    )
    columns: Columns = Field({}, title="Columns", description=COLUMNS, exclude_if=is_empty)
    reward: Literal["exact_match", "contains", "python"] = Field(
        "exact_match",
        title="Reward",
        description="How a completion is checked: against the answer, or by running it with the answer's assertions.",
    )
    answer_mark: str | None = Field(
        None, min_length=1, max_length=64, title="Mark",
        description="The mark in front of the final answer, such as GSM8K's ####; for exact_match.",
    )  # fmt: skip
    base_model: BaseModelName = None
    training: TrainingForm = Field(TrainingForm(), description="How the adapter first imitates the answers.")
    grpo: GrpoForm = Field(GrpoForm(), description="How it then learns from the verifier.")
    publish: Publish = PublishForm()
    max_spend: MaxSpend = None
    steps: PolicySteps = Field(PolicySteps(), description="Which further nodes the chain has.")

    def build(self) -> ChainSpec:
        checks = [validator(self)] if self.steps.validate_rows else []
        first, grpo = trainer(self), self.grpo
        mark = {"after": self.answer_mark} if self.answer_mark and self.reward == "exact_match" else {}
        drawing = {"num_generations": grpo.completions, "max_completion_length": grpo.max_completion_length}
        stage = Stage.GRPO.settings(rewards=[{"type": self.reward, **mark}], **drawing)
        source = DataSourceConfig(sets={Port.SFT: SourceSet(path=self.rows, columns=self.columns)})
        return finished("grpo", self, source, *checks, first, after(first, stage, grpo))


class RagTuning(Form):
    """Questions and answers whose answers are grounded in the documents, and an adapter that learned them."""

    documents: DocumentsPath = Field(
        title="Knowledge base", description=f"File or folder of the knowledge base; {RELATIVE}"
    )
    count: Count = 200
    model: Writer = None
    grounding: float = Field(
        0.6,
        ge=0,
        le=1,
        title="Grounding",
        description="Least share of an answer's words that have to be found in its document.",
    )
    base_model: BaseModelName = None
    training: TrainingForm = TrainingForm()
    publish: Publish = PublishForm()
    max_spend: MaxSpend = None
    steps: EvaluateSteps = EvaluateSteps()

    def build(self) -> ChainSpec:
        writer, checks = generator(self, GenerationTemplate.QA), validator(self, grounding=self.grounding)
        return finished("rag-tuning", self, DataSourceConfig(path=self.documents), writer, checks, trainer(self))


class CodeTuning(Form):
    """Instructions and code from a repository, an adapter that learned them, and its evaluation."""

    repository: RepositoryPath = Field(
        ".", title="Repository", description=f"Folder of the code, or of a git repository; {RELATIVE}"
    )
    learn_from: Literal["files", "commits"] = Field(
        "files",
        title="Learn from",
        description="The code as it is (files), or the history (commits): message and diff of each commit.",
    )
    count: Count = Field(200, description=f"Rows to train on; {ON_TOP}")
    model: Writer = Field(None, description="Model that writes the pairs; empty: they are taken from the code by rule.")
    base_model: BaseModelName = None
    training: TrainingForm = TrainingForm()
    publish: Publish = PublishForm()
    max_spend: MaxSpend = None
    steps: DeploySteps = DeploySteps()

    def build(self) -> ChainSpec:
        location = {"repository": self.repository} if self.learn_from == "commits" else {"path": self.repository}
        include = CODE_FILES if self.learn_from == "files" else ()
        source = DataSourceConfig(**location, include=include)
        writer = generator(self, GenerationTemplate.CODE)
        return finished("code-tuning", self, source, writer, validator(self), trainer(self))


TemplateForm = QaPipeline | AlignmentPipeline | Rlhf | Grpo | RagTuning | CodeTuning


# Nodes of a form


def generator(
    form: QaPipeline | RagTuning | CodeTuning, template: GenerationTemplate, wordings: int = 3
) -> nodes.AiGeneratorConfig:
    engine = GeneratorKind.EXTRACTIVE if form.model is None else None
    return nodes.AiGeneratorConfig(
        template=template, count=form.count, model=form.model, engine=engine, wordings=wordings
    )


def validator(form: TemplateForm, grounding: float | None = None) -> nodes.ValidatorConfig:
    return nodes.ValidatorConfig(max_tokens=form.training.max_length, grounding=grounding, holdout=nodes.HoldoutRules())


def trainer(form: TemplateForm) -> TrainerConfig:
    """Return the fields of the form that a trainer has under the same name; the method with its rank, where it has
    one.
    """
    training = form.training
    names = TrainingForm.model_fields.keys() & Hyperparameters.model_fields.keys()
    low_rank = "rank" in training.method.facts.settings.model_fields
    return TrainerConfig(
        method=training.method.settings(**({"rank": training.rank} if low_rank else {})),
        base_model=form.base_model,
        hyperparameters=Hyperparameters(**{name: getattr(training, name) for name in names}),
        **({"engine": EngineSettings(trackers=training.trackers)} if training.trackers else {}),
    )


def after(first: TrainerConfig, stage: StageSettings, form: RewardForm | DrawingForm) -> TrainerConfig:
    """Return a trainer of another stage that continues an earlier one, with the hyperparameters of its own form."""
    settings = {
        "epochs": form.epochs if isinstance(form, RewardForm) else None,
        "max_steps": form.max_steps,
        "learning_rate": form.learning_rate,
        "batch_size": form.batch_size,
    }
    updates = {"stage": stage, "hyperparameters": first.hyperparameters.model_copy(update=settings)}
    return first.model_copy(update=updates)


def make_node(config: Strict, node_id: str = "", needs: tuple[str, ...] | None = None) -> Any:
    """Return a node with its config; its id is by default its type."""
    kind = next(name for name, model in nodes.NODE_CONFIGS.items() if type(config) is model)
    model: Any = nodes.NODE_MODELS[kind]
    return model(type=kind, id=node_id or kind.replace("_", "-"), needs=needs, config=config)


def finished(name: str, form: TemplateForm, *configs: Strict) -> ChainSpec:
    """Return the chain with the nodes that its switches ask for."""
    publish, steps, role = form.publish, form.steps, form.publish.role or own_role(form)
    trainers = [at for at, config in enumerate(configs) if isinstance(config, TrainerConfig)]
    names = {at: f"trainer-{number}" for number, at in enumerate(trainers, 1) if number > 1}
    chain_nodes = [make_node(config, names.get(at, "")) for at, config in enumerate(configs)]
    last, together = chain_nodes[-1].id, not isinstance(steps, PolicySteps) and steps.control
    if together:  # the last trainer's twin on shuffled answers, parallel to it and not after it
        chain_nodes.append(
            make_node(configs[-1].model_copy(update={"control": "shuffled_answers"}), "control", (chain_nodes[-2].id,))
        )
    if not isinstance(steps, EvaluateSteps | Steps | PolicySteps) or steps.evaluate:
        judging = nodes.EvaluatorConfig(
            tolerance=publish.tolerance,
            quotes=publish.quotes,
            least_quoted=publish.least_quoted,
            baseline=publish.baseline,
            role=None if publish.baseline == "base" else role,
        )
        chain_nodes.append(make_node(judging, needs=(last, "control") if together else None))
        last = "evaluator"
    if steps.deploy:
        targets = tuple(nodes.Target.model_validate(target.model_dump()) for target in publish.targets)
        config = nodes.DeployerConfig(
            tenant=publish.tenant,
            role=role,
            targets=targets,
            unevaluated=publish.unevaluated,
            few_rows=publish.few_rows,
        )
        chain_nodes.append(make_node(config, needs=(last,) if together else None))
    return ChainSpec(name=name, tenant=publish.tenant, nodes=tuple(chain_nodes), max_spend=form.max_spend)


def own_role(form: TemplateForm) -> str:
    """Return the default role: that of the data, with a word of the template."""
    match form:
        case QaPipeline():
            return role_of_place(form.documents)
        case RagTuning():
            return role_of_place(form.documents, word="rag")
        case AlignmentPipeline():
            return role_of_place(form.sft, word="aligned")
        case Rlhf():
            return role_of_place(form.sft, word="rlhf")
        case Grpo():
            return role_of_place(form.rows, word="grpo")
        case CodeTuning():
            return role_of_place(form.repository, default="coder")


class Template(NamedTuple):
    """One row of the table: the form, and its description."""

    model: type[TemplateForm]
    description: str
    core: tuple[str, ...]
    """Types of the nodes that are always there, in order."""


TEMPLATES: dict[str, Template] = {
    "qa-pipeline": Template(
        QaPipeline,
        "Generate question and answer pairs from documents and train a model on them.",
        ("data_source", "ai_generator", "trainer"),
    ),
    "alignment-pipeline": Template(
        AlignmentPipeline,
        "Supervised fine-tuning followed by direct preference optimisation.",
        ("data_source", "trainer", "trainer"),
    ),
    "rlhf": Template(
        Rlhf,
        "Supervised fine-tuning, a reward model, and PPO with its scores.",
        ("data_source", "trainer", "trainer", "trainer"),
    ),
    "grpo": Template(
        Grpo,
        "Supervised fine-tuning, then reinforcement learning with answers that can be checked.",
        ("data_source", "trainer", "trainer"),
    ),
    "rag-tuning": Template(
        RagTuning,
        "Train on a knowledge base; every answer is checked against its document.",
        ("data_source", "ai_generator", "validator", "trainer"),
    ),
    "code-tuning": Template(
        CodeTuning,
        "Train on the code or the history of a repository and evaluate the result.",
        ("data_source", "ai_generator", "validator", "trainer", "evaluator"),
    ),
}


def build_template(name: str, parameters: Mapping[str, object] | TemplateForm | None = None) -> ChainSpec:
    """Return the chain of a template. `parameters` are those of its form; what is left out takes the form's default.

    Raises `KeyError` for an unknown name and pydantic's `ValidationError` for wrong parameters.
    """
    return TEMPLATES[name].model.model_validate(parameters or {}).build()
