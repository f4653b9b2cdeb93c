"""The six words a chain author may use, as configs. Their docstrings and docs/nodes.md describe them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, field_validator, model_validator

from trainyard.json_types import JsonObject
from trainyard.spec.axes.axis import Strict, omit_default
from trainyard.spec.axes.data import BAD_FRACTION, MADE_PORTS, DataFormat, GenerationTemplate, GeneratorKind, Port
from trainyard.spec.axes.targets import MergedFormat, TargetType
from trainyard.spec.packages import BUCKETS
from trainyard.spec.training import TrainerConfig

Path = Annotated[str, Field(min_length=1, max_length=4096)]
# `widget` is how a form shows a field (`WIDGETS` in web/src/components/schema.ts).
DocumentsPath = Annotated[Path, Field(json_schema_extra={"widget": "documents"})]
RowsPath = Annotated[Path, Field(json_schema_extra={"widget": "rows"})]
RepositoryPath = Annotated[Path, Field(json_schema_extra={"widget": "repository"})]
LongText = Annotated[str, Field(max_length=20_000, json_schema_extra={"widget": "textarea"})]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
SensitiveAction = Literal["off", "count", "mask", "quarantine"]
PhoneRegion = Literal[
    "AT", "AU", "BE", "BR", "CA", "CH", "CN", "CZ", "DE", "DK", "ES", "FI", "FR", "GB", "GR", "HU", "IE", "IL", "IN",
    "IT", "JP", "KR", "MX", "NL", "NO", "NZ", "PL", "PT", "RO", "SE", "SG", "TR", "UA", "US", "ZA",
]  # fmt: skip
PHONE_REGIONS: tuple[PhoneRegion, ...] = ("US", "GB", "DE", "FR")
Url = Annotated[str, Field(min_length=1, max_length=2048)]
EndpointName = Annotated[str, Field(min_length=1, max_length=256)]


HubName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?$")]
"""Without `\\w`: counted, its letters of every language cost a sixth of a second when the pattern is compiled."""
ColumnName = Annotated[str, Field(min_length=1, max_length=200)]
ColumnField = Literal[
    "messages",
    "prompt",
    "completion",
    "answer",
    "chosen",
    "rejected",
    "label",
    "text",
    "input",
    "history",
    "system",
    "tools",
]
"""The keys of `COLUMN_FIELDS`."""
Columns = Annotated[dict[ColumnField, ColumnName], Field(json_schema_extra={"widget": "columns"})]
TableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
QUERIED_SUFFIXES = (".parquet", ".csv", ".tsv", ".json", ".jsonl", ".ndjson")
PLACES = ("path", "url", "repository", "hub", "sql")
"""Fields of which a set has exactly one: it says where the set is."""


class HubSet(Strict):
    """A data set of the Hugging Face Hub; the name alone has the defaults. Code of a data set is never run."""

    name: HubName = Field(description="Such as org/name.")
    split: str = Field("train", max_length=100, pattern=r"^[\w.-]+$", description="Of the data set.")
    config: str | None = Field(None, min_length=1, max_length=200, description="Subset; default: the data set's own.")
    revision: str = Field(
        "main",
        max_length=200,
        pattern=r"^[\w./-]+$",
        description="Branch, tag or commit. The first commit that is read is kept.",
    )

    def __str__(self) -> str:
        parts = (self.name, self.config, self.split)
        return f"hub:{'/'.join(filter(None, parts))}@{self.revision}"


def hub_words(value: Any) -> object:
    """`hub: org/name` and `hub: hub:org/name` as the settings of a data set."""
    return {"name": value.removeprefix("hub:")} if isinstance(value, str) else value


HubField = Annotated[HubSet, BeforeValidator(hub_words, json_schema_input_type=str | HubSet)]


class SqlQuery(Strict):
    """A query whose rows are the set: over files by DuckDB, or on a database that the operator has named."""

    query: LongText = Field(min_length=1, description="One SELECT; `AS` gives a column a field's name.")
    files: dict[TableName, Path] = Field(default_factory=dict, description="Table -> Parquet, CSV or JSON file.")
    database: str | None = Field(None, min_length=1, max_length=100, description="Name in the setting `databases`.")

    @model_validator(mode="after")
    def one_kind(self) -> SqlQuery:
        if bool(self.files) == bool(self.database):
            raise ValueError("a query needs either files or a database")
        if unread := [path for path in self.files.values() if not path.lower().endswith(QUERIED_SUFFIXES)]:
            raise ValueError(f"a query reads {', '.join(QUERIED_SUFFIXES)}, not {unread[0]!r}")
        return self


def is_empty(value: Any) -> bool:
    """Return whether a mapping is left out of a dump."""
    return not value


def is_unset(value: Any) -> bool:
    """Return whether a field is left out of a dump: chains that do not use it keep their digest."""
    return value is None


class SetFields(Strict):
    """Where a set of a data source is, and what of it is read."""

    path: DocumentsPath | None = Field(None, description="File or folder inside a data root.")
    url: Url | None = Field(None, description="http(s) address of a file; gs://, s3:// or az:// of a file or folder.")
    repository: RepositoryPath | None = Field(None, description="Git repository: each commit gives message and diff.")
    hub: HubField | None = Field(None, description="Data set of the Hugging Face Hub.", exclude_if=is_unset)
    sql: SqlQuery | None = Field(None, description="Read-only query.", exclude_if=is_unset)
    data_worker: Url | None = Field(None, description="Address of a data worker, which has `path` in a repository.")
    format: DataFormat = DataFormat.AUTO
    converter: str | None = Field(
        None, min_length=1, max_length=100, description="Name in the setting `converters`.", exclude_if=is_unset
    )
    columns: Columns = Field(
        default_factory=dict,
        description="Field of a row -> the column that contains it, such as prompt: question_text.",
        exclude_if=is_empty,
    )
    include: tuple[str, ...] = Field((), description="Globs of files; empty takes every known type.")
    exclude: tuple[str, ...] = Field((), description="Globs of files that are left out.")
    max_rows: int | None = Field(None, ge=1, le=10**12, description="Good rows to read; empty: all.")
    license: str | None = Field(
        None, min_length=1, max_length=100, exclude_if=is_unset,
        description="Licence of the data, such as cc-by-4.0; the ledger, reports and cards name it.",
    )  # fmt: skip


class SourceSet(SetFields):
    """One named set of a data source. Exactly one of path, url, repository, hub and sql says where it is."""

    @model_validator(mode="after")
    def one_place(self) -> SourceSet:
        sources = [name for name in PLACES if getattr(self, name)]
        if self.data_worker and sources != ["path"]:
            raise ValueError("a data_worker needs exactly a path with it")
        if not self.data_worker and len(sources) != 1:
            names = ", ".join(sources) or "none"
            raise ValueError(f"exactly one of {', '.join(PLACES[:-1])} and {PLACES[-1]} is needed; given: {names}")
        if self.sql is not None and (self.include or self.exclude):
            raise ValueError("a query reads the files that it names; include and exclude have no effect")
        if self.columns and (self.converter or self.repository or self.format is DataFormat.DOCUMENTS):
            raise ValueError("columns names the columns of rows; a converter, documents and repositories have none")
        if len(set(self.columns.values())) < len(self.columns):
            raise ValueError("columns gives one column to two fields")
        if self.converter is not None and (self.repository or self.format is DataFormat.DOCUMENTS):
            raise ValueError("a converter converts rows; documents and repositories have none")
        return self

    @property
    def in_bucket(self) -> bool:
        """Return whether its address is that of a bucket, which only an operator opens to chains."""
        return self.url is not None and self.url.partition("://")[0].lower() in BUCKETS


class MixedSet(SourceSet):
    """One set of a mixture; `max_rows` is its cap."""

    weight: float = Field(1.0, gt=0, le=10**9, description="Its share of the rows, next to the other weights.")
    max_epochs: int = Field(1, ge=1, le=1000, description="How often each of its rows may be taken.")


class Mixture(Strict):
    """Several sets as one set of rows, by weight. The same seed draws the same rows in the same order."""

    sets: dict[Name, MixedSet] = Field(min_length=1, description="Name in reports -> set.")
    port: Port | None = Field(None, description="Port that it fills; default: the one that all sets fill.")
    rows: int | None = Field(None, ge=1, le=10**12, description="Rows of the mixture; default: as many as there are.")
    exhausted: Literal["stop", "continue"] = Field(
        "stop", description="When a set has no more rows: end the mixture, or continue with the other sets."
    )
    seed: int = Field(42, ge=0, le=2**31 - 1, description="Of what is drawn, and of the order.")

    @field_validator("port")
    @classmethod
    def only_rows(cls, port: Port | None) -> Port | None:
        if port in MADE_PORTS:
            raise ValueError(f"a mixture cannot fill {port.value!r}")
        return port


class DataSourceConfig(SetFields):
    """Reads documents or rows: one set by its own fields, more under `sets`, each named by its port, or a `mix`."""

    sets: dict[Port, SourceSet] = Field(default_factory=dict, description="Port that is filled -> one set.")
    mix: Mixture | None = Field(None, description="Several sets as one, by weight.", exclude_if=is_unset)
    heldout: SourceSet | None = Field(
        None, description="Rows that no trainer learns from: `eval: {set: heldout}` reads them.", exclude_if=is_unset
    )
    max_bad_fraction: float = Field(
        BAD_FRACTION, ge=0, le=1,
        description="Share of rows that may be bad, or refused by the chat template, before the run fails.",
    )  # fmt: skip

    @field_validator("sets")
    @classmethod
    def only_data(cls, sets: dict[Port, SourceSet]) -> dict[Port, SourceSet]:
        wrong = [port.value for port in sets if port in MADE_PORTS]
        if wrong:
            raise ValueError(
                f"a data source cannot name the set {wrong[0]!r}; allowed: documents, sft, preference, labelled, text"
            )
        return sets

    @model_validator(mode="after")
    def single_or_sets(self) -> DataSourceConfig:
        has_source = any(getattr(self, name) for name in (*PLACES, "data_worker"))
        if has_source + bool(self.sets) + bool(self.mix) > 1:
            raise ValueError(f"give either one of {', '.join(PLACES)}, or sets, or mix; not two of them")
        usual: dict[str, object] = {
            "format": DataFormat.AUTO,
            "include": (),
            "exclude": (),
            "max_rows": None,
            "converter": None,
            "columns": {},
            "license": None,
        }
        if self.mix and (unread := [name for name, value in usual.items() if getattr(self, name) != value]):
            raise ValueError(f"{unread[0]} has no effect next to mix; write it in the sets that it is meant for")
        if self.heldout and (self.sets or self.mix):
            raise ValueError("heldout has no place next to sets or mix; give the source one set")
        if not self.sets and not self.mix:
            self.single()
        return self

    def single(self) -> SourceSet:
        """Return the one set described by the config's own fields."""
        return SourceSet(**{name: getattr(self, name) for name in SetFields.model_fields})

    def named_sets(self) -> list[tuple[str, Port | None, SourceSet]]:
        """(where it is written, the port that it names, the set) of each set, those that are held out included."""
        held_out = [] if self.heldout is None else [("heldout.", None, self.heldout)]
        return [*self.trained_sets(), *held_out]

    def trained_sets(self) -> list[tuple[str, Port | None, SourceSet]]:
        """Return the same without the held-out set."""
        sets: list[tuple[str, Port | None, SourceSet]] = [
            (f"sets.{port}.", port, source) for port, source in self.sets.items()
        ]
        if self.mix is not None:
            return [(f"mix.sets.{name}.", self.mix.port, source) for name, source in self.mix.sets.items()]
        return sets or [("", None, self.single())]


LEAST_ROWS = 30
"""Rows to train on, and rows to evaluate on, below which an evaluator gives no verdict by default."""


class HoldoutRules(Strict):
    """The rows that are held out before training, for the evaluator."""

    documents: float = Field(0.1, ge=0, lt=1, description="Share of the source documents, chosen by their hash.")
    min_rows: int = Field(LEAST_ROWS, ge=0, le=100_000, description="Rows that are held out at least.")
    wording: bool = Field(True, description="Keep one wording of each question from training, if there are several.")


class GeneratorAddress(Strict):
    """Author of a generator's rows, and the address of its server."""

    model: str | None = Field(None, min_length=1, max_length=256, description="Writes the rows; empty: by rule.")
    engine: GeneratorKind | None = Field(None, description="Default: extractive without a model, else by the endpoint.")
    endpoint: EndpointName | None = Field(
        None, description="Endpoint of trainyard.toml that answers, with its key; default: the one named as the model."
    )
    base_url: Url | None = Field(None, description="OpenAI-compatible address, asked without a key.")


class AiGeneratorConfig(GeneratorAddress):
    """Writes rows from documents. Without a model the `extractive` engine takes pairs from the text by rule."""

    count: int = Field(200, ge=1, le=10_000_000, description="Rows to train on, over all documents.")
    holdout: HoldoutRules | None = Field(
        None, description="Rows on top of count; default: the held-out rows of the validator after it."
    )
    template: GenerationTemplate = Field(GenerationTemplate.QA, description="What kind of rows is written.")
    prompt: LongText | None = Field(None, description="Own Jinja prompt (sandboxed); sees `document`.")
    wordings: int = Field(3, ge=1, le=8, description="Of each question; a validator after it holds out the last one.")
    best_of: int = omit_default(
        1, ge=1, le=64, description="Answers to each question, of which the one that a reward model scores best stays."
    )
    temperature: float = Field(0.7, ge=0, le=2, description="Of the sampling.")
    max_tokens: int = Field(1024, ge=16, le=131_072, description="Tokens of one reply.")
    concurrency: int = Field(8, ge=1, le=1024, description="Requests at a time.")
    retries: int = Field(4, ge=0, le=20, description="Further tries of a failed request.")
    timeout_s: float = Field(120, gt=0, le=86_400, description="Time for one whole reply.")
    seed: int = Field(42, ge=0, le=2**31 - 1, description="Of what is drawn.")
    max_chars: int = Field(8000, ge=200, le=10_000_000, description="Characters of a document that one prompt shows.")


class QualityRules(Strict):
    """Rules by which a row is dropped; each drop is counted under its rule's name."""

    min_answer_chars: int = Field(2, ge=0, description="Shorter answers are dropped.")
    max_answer_chars: int = Field(20_000, ge=1, description="Longer answers are dropped.")
    max_repeated_line_fraction: float = Field(0.5, ge=0, le=1, description="Share of lines that repeat earlier ones.")
    max_symbol_fraction: float = Field(0.5, ge=0, le=1, description="Share of symbols: no letter, digit or space.")
    refuse_phrases: tuple[str, ...] = Field((), description="A row whose answer contains one of these is dropped.")


class SensitiveRules(Strict):
    """Treatment of personal data and secrets in the texts of a row, by kind."""

    email: SensitiveAction = Field("count", description="E-mail addresses.")
    phone: SensitiveAction = Field("count", description="Phone numbers.")
    card: SensitiveAction = Field("count", description="Numbers of payment cards.")
    api_key: SensitiveAction = Field("count", description="Keys and tokens of services, passwords in URLs.")
    private_key: SensitiveAction = Field("count", description="PEM, PGP and age private keys.")
    phone_regions: tuple[PhoneRegion, ...] = Field(
        PHONE_REGIONS, description="Countries whose numbers are found without the country's code."
    )

    @model_validator(mode="after")
    def regions_are_used(self) -> SensitiveRules:
        if self.phone == "off" and self.phone_regions != PHONE_REGIONS:
            raise ValueError("phone_regions has no effect while phone is off")
        return self


def same_for_all(value: Any) -> object:
    """`mask` as every kind's action."""
    if not isinstance(value, str):
        return value
    if value not in (actions := get_args(SensitiveAction)):
        raise ValueError(f"{value!r} is none of {', '.join(actions)}")
    return {name: value for name in SensitiveRules.model_fields if name != "phone_regions"}


class ValidatorConfig(Strict):
    """Keeps the good rows, counts every other one with its reason, and sets evaluation rows aside."""

    max_tokens: int = Field(512, ge=8, le=1_048_576, description="Tokens of a row, the chat template included.")
    min_tokens: int = Field(1, ge=0, description="Rows with fewer tokens are dropped.")
    too_long: Literal["drop", "truncate", "raise"] = Field("drop", description="Rows above max_tokens.")
    tokenizer: str | None = Field(None, min_length=1, max_length=512, description="Default: the base model's.")
    quality: QualityRules = Field(default_factory=QualityRules)
    exact_duplicates: bool = Field(True, description="Drop rows that repeat an earlier one to the byte.")
    near_duplicates: float | None = Field(0.9, gt=0, le=1, description="Jaccard similarity; null switches it off.")
    grounding: float | None = Field(
        None, ge=0, le=1, description="Least share of the answer's words found in its source document; left out: off."
    )
    decontaminate: int = Field(13, ge=0, le=100, description="Words of an n-gram shared with a held-out row; 0: off.")
    evaluation_sets: tuple[Path, ...] = Field((), description="Task files that training must not contain either.")
    holdout: HoldoutRules = Field(default_factory=HoldoutRules)
    row_schema: JsonObject | None = Field(None, description="JSON Schema that every row has to meet.")
    sensitive: Annotated[
        SensitiveRules, BeforeValidator(same_for_all, json_schema_input_type=SensitiveAction | SensitiveRules)
    ] = Field(SensitiveRules(), description="Personal data and secrets: one word for all kinds, or one for each.")


REWARD_BENCHMARKS = ("reward_accuracy", "mean_reward")
"""The benchmarks of reward models, which give scores and no text; by default the first one decides."""


class BenchmarkSpec(Strict):
    """One line of the evaluator's table. `name` is a row of `evals/benchmarks`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_:-]{0,63}$", description="Such as heldout_loss.")]
    set: Literal["unseen_wording", "unseen_documents", "heldout"] | None = Field(None, description="Default: all.")
    path: Path | None = Field(None, description="JSONL task file.")
    margin: float = Field(0.0, ge=0, description="How much worse the candidate may be without failing the gate.")
    relative_margin: float = Field(
        0.0, ge=0, le=1, description="The same as a share of the baseline; the larger counts."
    )
    required: float | None = Field(
        None, exclude_if=lambda value: value is None,
        description="Mean that the candidate has to reach to be better, whatever the baseline has.",
    )  # fmt: skip
    max_rows: int = Field(200, ge=1, le=1_000_000, description="Rows of a set that are scored.")


class JudgeSettings(Strict):
    """The language model that judges answers, asked at an OpenAI-compatible address."""

    model: str | None = Field(
        None, min_length=1, max_length=256, description="The server's name for the judge; default: the endpoint's."
    )
    endpoint: EndpointName | None = Field(None, description="Endpoint of trainyard.toml: its address, with its key.")
    base_url: Url | None = Field(None, description="OpenAI-compatible address, asked without a key.")
    rubric: str | None = Field(
        None, min_length=1, max_length=20_000, description="By what judge_rubric scores an answer from 1 to 5."
    )
    answer_tokens: int = Field(256, ge=1, le=131_072, description="Tokens of an answer that is judged.")
    max_tokens: int = Field(512, ge=16, le=131_072, description="Tokens of a reply of the judge.")
    temperature: float = Field(0.0, ge=0, le=2, description="Of the judge's sampling.")
    concurrency: int = Field(8, ge=1, le=1024, description="Requests at a time.")
    retries: int = Field(4, ge=0, le=20, description="Further tries of a failed request.")
    timeout_s: float = Field(120, gt=0, le=86_400, description="Time for one whole reply.")
    usd_per_million_prompt_tokens: float | None = Field(None, ge=0, description="Price, for the cost in the report.")
    usd_per_million_completion_tokens: float | None = Field(None, ge=0, description="The same of what it writes.")

    @field_validator("rubric")
    @classmethod
    def says_something(cls, rubric: str | None) -> str | None:
        if rubric is not None and not rubric.strip():
            raise ValueError("a rubric has at least one word")
        return rubric

    @model_validator(mode="after")
    def one_address(self) -> JudgeSettings:
        if (self.endpoint is None) == (self.base_url is None):
            raise ValueError("a judge takes either an endpoint or a base_url")
        if self.base_url is not None and self.model is None:
            raise ValueError("a judge at a base_url needs the server's name of its model")
        return self


class EvaluatorConfig(Strict):
    """Compares the candidate with its baseline, row by row, on data that training did not see."""

    benchmarks: tuple[BenchmarkSpec, ...] = Field(
        (), description="Default: loss and token accuracy on all held-out sets."
    )
    primary: str | None = Field(None, description="`benchmark/set` that decides the gate; default: the chain's kind.")
    baseline: Literal["base", "live", "both"] = Field(
        "base", description="The base model, the adapter now live, or both: then it has to be better than either."
    )
    role: Name | None = Field(
        None, description="Whose live version it is compared with; default: the deployer's role.", exclude_if=is_unset
    )
    least_rows: int = Field(
        LEAST_ROWS, ge=0, description="Rows trained on, and of the primary benchmark, below which there is no verdict.",
        exclude_if=lambda least: least == LEAST_ROWS,
    )  # fmt: skip
    tolerance: float | None = Field(
        None, ge=0, le=1, description="Share of the baseline by which the other default metrics may be worse."
    )
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Of the intervals.")
    resamples: int = Field(2000, ge=100, le=100_000, description="Draws of the bootstrap.")
    judge: JudgeSettings | None = Field(
        None, description="Judge of the benchmarks judge and judge_rubric.", exclude_if=lambda value: value is None
    )
    quotes: int | None = Field(
        None, ge=0, le=1000,
        description="Held-out questions for the benchmark `quotes`; default: 20 where pairs are taken from the text by "
        "rule, else 0.",
    )  # fmt: skip
    least_quoted: float | None = Field(
        None, ge=0, le=1, exclude_if=is_unset,
        description="Share of those answers that have to contain the right one; default: 0.2 where pairs are taken "
        "from the text by rule, else 0.",
    )  # fmt: skip
    samples: int = Field(3, ge=0, le=50, description="Prompts answered by baseline and candidate in the report.")
    seed: int = Field(42, ge=0, le=2**31 - 1, description="Of what is drawn.")


class Target(Strict):
    """One place where the adapter has to answer."""

    type: TargetType = TargetType.REGISTRY
    url: Url | None = Field(
        None, description="Server's address, asked without a key; default for `embedded`: the one that is up."
    )
    endpoint: EndpointName | None = Field(None, description="Endpoint of trainyard.toml: its address, with its key.")
    base_model: str | None = Field(None, description="Base model of the server; must be the trainer's.")
    max_lora_rank: int | None = Field(None, ge=1, le=256, description="The server's own start option.")
    path_prefix: tuple[Path, Path] | None = Field(None, description="(our folder, the same folder on the server).")
    merged: MergedFormat | None = Field(
        None, description="Base and adapter as one model in this format, in place of the adapter.", exclude_if=is_unset
    )


class DeployerConfig(Strict):
    """Registers `<tenant>/<role>/v<N>` and switches the targets, all or none, if the gate says better."""

    tenant: Name | None = Field(None, description="Default: the chain's tenant.")
    role: Name | None = Field(None, description="Purpose of the adapter; part of its name. Default: the data's name.")
    targets: tuple[Target, ...] = Field(default_factory=lambda: (Target(),))
    unevaluated: bool = Field(False, description="Deploy without an evaluator upstream.")
    few_rows: Literal["stop", "allow"] = Field(
        "stop", description="Where there are not enough rows to say; allow: deploy what is better on these rows.",
        exclude_if=lambda value: value == "stop",
    )  # fmt: skip
    canary: str = Field(
        "What is this about?", min_length=1, max_length=4000, description="Asked before a target is switched."
    )
    canary_max_tokens: int = Field(32, ge=1, le=4096, description="Tokens of the answer to it.")


class NodeBase(Strict):
    """The fields of every node besides its config."""

    id: Name | None = Field(None, description="Default: the type, with a number when it repeats.")
    needs: tuple[Name, ...] | None = Field(None, description="Ids of the nodes before it; default: the one above.")


class DataSourceNode(NodeBase):
    type: Literal["data_source"]
    config: DataSourceConfig


class AiGeneratorNode(NodeBase):
    type: Literal["ai_generator"]
    config: AiGeneratorConfig = Field(default_factory=AiGeneratorConfig)


class ValidatorNode(NodeBase):
    type: Literal["validator"]
    config: ValidatorConfig = Field(default_factory=ValidatorConfig)


class TrainerNode(NodeBase):
    type: Literal["trainer"]
    config: TrainerConfig = Field(default_factory=TrainerConfig)


class EvaluatorNode(NodeBase):
    type: Literal["evaluator"]
    config: EvaluatorConfig = Field(default_factory=EvaluatorConfig)


class DeployerNode(NodeBase):
    type: Literal["deployer"]
    config: DeployerConfig = Field(default_factory=DeployerConfig)


Node = Annotated[
    DataSourceNode | AiGeneratorNode | ValidatorNode | TrainerNode | EvaluatorNode | DeployerNode,
    Field(discriminator="type"),
]
NodeType = Literal["data_source", "ai_generator", "validator", "trainer", "evaluator", "deployer"]
NODE_TYPES: tuple[str, ...] = get_args(NodeType)
NODE_MODELS: dict[str, type[NodeBase]] = dict(zip(NODE_TYPES, get_args(get_args(Node)[0]), strict=True))
NODE_CONFIGS: dict[str, type[Strict]] = {
    name: model.model_fields["config"].annotation  # type: ignore[misc]
    for name, model in NODE_MODELS.items()
}
