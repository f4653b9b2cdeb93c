"""Rows that need the machine and the operator's settings: a chain they refuse is a valid chain elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import unquote, urlsplit

from trainyard.errors import Reason
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import GeneratorKind
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.axes.rewards import JudgeReward
from trainyard.spec.axes.strategies import DilocoEngine
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.compat.context import Match, NodeView, Row, When, answers, fill, join_words
from trainyard.spec.compat.engine import GPUS, unfit_kernels
from trainyard.spec.compat.evaluator_deployer import each_target
from trainyard.spec.compat.training import draws_by_vllm
from trainyard.spec.estimate.shape import LEAST_LENGTH, BaseFacts, ModelLayout
from trainyard.spec.nodes import AiGeneratorConfig, DataSourceConfig, DeployerConfig, EvaluatorConfig, ValidatorConfig
from trainyard.spec.packages import GCS, LIGER, TORCHFT, Package
from trainyard.spec.training import TrainerConfig


def data_paths(config: object, at: NodeView) -> Match:
    """Return every path of a node that its reader would refuse."""
    problem = at.facts.path_problem
    if problem is None:
        return False
    return [
        {"where": field, "because": message.because.removesuffix("."), "instead": message.instead.removesuffix(".")}
        for field, path in list_paths(config)
        if (message := problem(path))
    ]


def list_paths(config: object) -> Iterator[tuple[str, str]]:
    if isinstance(config, DataSourceConfig):
        for prefix, _, source in config.named_sets():
            paths = {"path": None if source.data_worker else source.path, "repository": source.repository}
            yield from ((f"{prefix}{name}", path) for name, path in paths.items() if path)
            tables = source.sql.files if source.sql is not None else {}
            yield from ((f"{prefix}sql.files.{name}", path) for name, path in tables.items())
    if isinstance(config, ValidatorConfig):
        yield from ((f"evaluation_sets.{index}", path) for index, path in enumerate(config.evaluation_sets))
    if isinstance(config, TrainerConfig):
        if config.engine.template.endswith(".jinja"):
            yield "engine.template", config.engine.template
        parts = urlsplit(config.engine.mirror or "")
        if parts.scheme == "file":  # as the store reads it: `file:/x`, `file://localhost/x` and `%2e%2e` are paths too
            yield "engine.mirror", unquote(parts.path)
    if isinstance(config, EvaluatorConfig):
        yield from ((f"benchmarks.{n}.path", line.path) for n, line in enumerate(config.benchmarks) if line.path)


def no_endpoint(config: AiGeneratorConfig, at: NodeView) -> Match:
    asks = config.engine in (None, GeneratorKind.OPENAI) and config.base_url is None and config.endpoint is None
    return asks and at.facts.endpoints is not None and config.model not in at.facts.endpoints


def unknown_endpoint(config: object, at: NodeView) -> Match:
    """Return each endpoint that a node names and trainyard.toml does not have."""
    endpoints, named = at.facts.endpoints, {}
    if isinstance(config, AiGeneratorConfig):
        named = {"endpoint": config.endpoint}
    if isinstance(config, EvaluatorConfig) and config.judge is not None:
        named = {"judge.endpoint": config.judge.endpoint}
    if isinstance(config, TrainerConfig):
        named = {"stage.endpoint": config.stage.teacher_server}
        named |= {"service.endpoint": config.service.endpoint} if config.service is not None else {}
        rewards = enumerate(getattr(config.stage, "rewards", ()))
        named |= {
            f"stage.rewards.{at}.endpoint": reward.endpoint for at, reward in rewards if isinstance(reward, JudgeReward)
        }
    if isinstance(config, DeployerConfig):
        named = {f"targets.{index}.endpoint": target.endpoint for index, target in enumerate(config.targets)}
    return endpoints is not None and [
        {"where": where, "endpoint": name, "known": join_words(sorted(endpoints)) or "none"}
        for where, name in named.items()
        if name is not None and name not in endpoints
    ]


def runs_code(config: TrainerConfig, at: NodeView) -> Match:
    """Return each setting by which code of completions would run on a machine that cannot confine it."""
    code_places, confines = config.stage.code_places, at.facts.confines_code
    return bool(code_places) and confines is not None and not confines() and [{"where": where} for where in code_places]


def opens_network(config: TrainerConfig, at: NodeView) -> Match:
    """Return the servers of a launch that anybody on the network can reach, where the operator has not allowed them."""
    launch = config.launch
    islands = launch.diloco is not None and launch.diloco.type is DilocoEngine.TORCHFT
    servers = "The launcher of several hosts" if launch.node_count > 1 else "The servers of torchft's islands"
    return at.facts.opens_network is False and (launch.node_count > 1 or islands) and {"servers": servers}


def unlisted_bucket(config: TrainerConfig, at: NodeView) -> Match:
    """Return a bucket that the operator has not listed: this machine's cloud credentials would open it."""
    mirror = config.engine.mirror or ""
    return urlsplit(mirror).scheme == "gs" and at.facts.may_mirror is not None and not at.facts.may_mirror(mirror)


def unlisted_data(config: DataSourceConfig, at: NodeView) -> Match:
    """Return each bucket with data that the operator has not listed."""
    may_read = at.facts.may_read
    return may_read is not None and [
        {"where": f"{where}url", "address": source.url}
        for where, _, source in config.named_sets()
        if source.in_bucket and source.url is not None and not may_read(source.url)
    ]


def unlisted_worker(config: DataSourceConfig, at: NodeView) -> Match:
    """Return each data worker that the settings do not name: this machine's token opens those that they name."""
    workers = at.facts.data_workers
    return workers is not None and [
        {"where": f"{where}data_worker", "worker": source.data_worker, "known": join_words(sorted(workers)) or "none"}
        for where, _, source in config.named_sets()
        if source.data_worker is not None and source.data_worker.rstrip("/") not in workers
    ]


def explain_absence(config: TrainerConfig, at: NodeView) -> str | None:
    """Return why the backend of a trainer is not available here; None if it is, or if that is not known."""
    backends = at.facts.backends
    return None if backends is None else backends.get(config.backend, "This version does not have it.")


def has_no_key(config: TrainerConfig, at: NodeView) -> Match:
    variable = at.facts.missing_key(config) if at.facts.missing_key is not None else None
    return variable is not None and {"variable": variable}


def no_backend(config: TrainerConfig, at: NodeView) -> Match:
    why = (
        explain_absence(config, at) if not config.backend.facts.runs_scripts else None
    )  # a script has a row of its own
    here = [name.value for name, problem in (at.facts.backends or {}).items() if problem is None]
    return why is not None and {"why": why, "here": join_words(here) or "none is available here"}


def lacks_device(device: Device, at: NodeView) -> bool:
    return at.facts.devices is not None and device not in (Device.AUTO, *at.facts.devices)


def computes_on_cpu(config: TrainerConfig, at: NodeView) -> bool:
    return config.device is Device.AUTO and at.facts.devices is not None and not at.facts.devices - {Device.CPU}


def unfit_kernels_here(config: TrainerConfig, at: NodeView) -> Match:
    """Return the settings that ask for a kernel which is not written for the device that `auto` takes."""
    native = config.backend is BackendName.NATIVE and config.device is Device.AUTO
    device = next((candidate for candidate in (*GPUS, Device.MPS) if not lacks_device(candidate, at)), Device.CPU)
    return native and at.facts.devices is not None and unfit_kernels(config, device)


def no_package(config: TrainerConfig, at: NodeView) -> Match:
    """Return the missing packages of the native engine."""
    has = at.facts.has_module
    if has is None or config.backend is not BackendName.NATIVE:
        return False
    optimizer, format = config.hyperparameters.optimizer, config.quantization
    packages = [("hyperparameters.optimizer", optimizer.value, optimizer.facts.package)]
    packages += [("quantization", format.value, format.facts.package)] if format else []
    asks_liger = next((name for name in ("head", "kernels") if getattr(config.engine, name) == "liger"), None)
    packages += [(f"engine.{asks_liger}", "liger", LIGER)] if asks_liger else []
    if config.launch.diloco is not None and config.launch.diloco.type is DilocoEngine.TORCHFT:
        packages.append(("launch.diloco", "torchft", TORCHFT))
    mirror = config.engine.mirror or ""
    packages += [("engine.mirror", mirror, GCS)] if urlsplit(mirror).scheme == "gs" else []
    packages += [("engine.trackers", name, Package((name,), name)) for name in config.engine.trackers]  # named as it is
    return [
        {"where": field, "value": value, "missing": " and ".join(lacking), "install": package.install}
        for field, value, package in packages
        if (lacking := package.missing(has))
    ]


# Base models


Judge = Callable[[TrainerConfig, BaseFacts], Match]
ARTICLES = {
    ModelLayout.ENCODER: "an encoder",
    ModelLayout.ENCODER_DECODER: "an encoder-decoder",
    ModelLayout.OTHER: ModelLayout.OTHER,
}


def other_layout(config: TrainerConfig, base: BaseFacts) -> Match:
    own_script = config.backend.facts.runs_scripts and config.launch.script is not None
    return not own_script and base.layout in ARTICLES and {"what": ARTICLES[base.layout], "type": base.model_type}


def unknown_ids(_: TrainerConfig, base: BaseFacts) -> Match:
    """Ids of the tokenizer for which the model has no embedding."""
    if base.vocabulary is None or base.tokens is None or base.tokens <= base.vocabulary:
        return False
    return {"highest": base.tokens - 1, "tokens": base.tokens, "vocabulary": base.vocabulary}


def beyond_table(config: TrainerConfig, base: BaseFacts) -> Match:
    """Return rows, with what is drawn after them, for which a table of positions has no entries."""
    context, drawn_tokens = base.context, config.stage.drawn_tokens
    if not context.is_table or context.positions is None:
        return False
    length = config.hyperparameters.max_length
    if length + drawn_tokens <= context.positions:
        return False
    most = context.positions - drawn_tokens
    return {
        "positions": context.positions,
        "drawn": f" and completions of up to {drawn_tokens}" if drawn_tokens else "",
        "use": f"a max_length of at most {most}" if most >= LEAST_LENGTH else "a shorter max_completion_length",
    }


def scaled_beyond(config: TrainerConfig, base: BaseFacts) -> Match:
    """Return a scaling of positions that the base does not have."""
    rope, positions = config.rope, base.context.positions
    original = rope.original_length if rope is not None else None
    return None not in (original, positions) and original > positions and {"positions": positions}  # type: ignore[operator]


def packed_for_mlx(config: TrainerConfig, base: BaseFacts) -> Match:
    return base.made_for_mlx and config.backend is not BackendName.MLX


def evaluates_mlx(_: EvaluatorConfig, at: NodeView) -> Match:
    """Return a trained model whose base the evaluator cannot load."""
    before = at.trainer()
    facts = at.facts.base(before.base_model) if before and before.base_model and at.facts.base else None
    return facts is not None and facts.made_for_mlx and {"base": before.base_model if before else ""}


def of_base(judge: Judge) -> When:
    """Return the same about the base model's files, where this machine has them."""

    def when(config: TrainerConfig, at: NodeView) -> Match:
        facts = at.facts.base(config.base_model) if at.facts.base and config.base_model else None
        return facts is not None and judge(config, facts)

    return when


JUDGES: dict[str, Judge] = {
    "base-layout": other_layout,
    "base-vocabulary": unknown_ids,
    "base-positions": beyond_table,
    "rope-original": scaled_beyond,
    "base-mlx": packed_for_mlx,
}

BASE_ROWS = (
    Row(
        "base-layout", "R-BASE-MISMATCH", "trainer", "config.base_model", of_base(JUDGES["base-layout"]),
        "The base {config.base_model!r} is {what} ({type}); a stage trains a decoder, which predicts the next token.",
        "Use a decoder-only language model, such as a Llama, a Qwen or `starter`.", scope="run",
    ),
    Row(
        "base-vocabulary", "R-BASE-MISMATCH", "trainer", "config.base_model", of_base(JUDGES["base-vocabulary"]),
        "The tokenizer of {config.base_model!r} gives ids up to {highest}, and the model has embeddings for "
        "{vocabulary} tokens.",
        "Put the tokenizer that the model was trained with into its folder, or save the model after "
        "`resize_token_embeddings({tokens})`.",
        scope="run",
    ),
    Row(
        "base-positions", "R-LENGTH", "trainer", "config.hyperparameters.max_length",
        of_base(JUDGES["base-positions"]),
        "The base {config.base_model!r} has {positions} positions, and rows of up to "
        "{config.hyperparameters.max_length} tokens{drawn} would be trained.",
        "Use {use}, or another base.", scope="run",
    ),
    Row(
        "rope-original", "R-LENGTH", "trainer", "config.rope.original_length", of_base(JUDGES["rope-original"]),
        "The positions of {config.base_model!r} would be scaled from {config.rope.original_length}, and it has "
        "{positions}.",
        "Remove original_length, or write at most {positions}.", scope="run",
    ),
    Row(
        "base-mlx", "R-QUANTIZATION", "trainer", "config.base_model", of_base(JUDGES["base-mlx"]),
        "The base {config.base_model!r} is quantized for MLX, and backend {config.backend} cannot read such weights.",
        "Use the base in full precision, with method qlora where memory is short, or backend mlx.", scope="run",
    ),
)  # fmt: skip
"""A plan reads them from the files of the base, a training child from the base that it is about to load."""


def other_vocabulary(config: TrainerConfig, at: NodeView) -> Match:
    """Return a teacher whose tokenizer knows more or fewer tokens than the student's; a training compares them one by
    one.
    """
    teacher, base = config.stage.teacher_model, config.base_model
    if at.facts.base is None or not teacher or not base:
        return False
    vocabularies = [facts.tokens if (facts := at.facts.base(name)) else None for name in (teacher, base)]
    return (
        None not in vocabularies
        and vocabularies[0] != vocabularies[1]
        and {"teacher": vocabularies[0], "student": vocabularies[1]}
    )


def base_reasons(config: TrainerConfig, base: BaseFacts, node: str | None) -> list[Reason]:
    """Return every reason why a base cannot be trained, for a child that has loaded its config and its tokenizer."""
    return [
        fill(row, {"config": config, **arguments}, node, row.field)
        for row in BASE_ROWS
        for arguments in answers(JUDGES[row.name](config, base))
    ]


def switched_off(config: TrainerConfig, at: NodeView) -> Match:
    why = explain_absence(config, at)
    return config.backend.facts.runs_scripts and why is not None and {"why": why}


def length_advice(config: TrainerConfig, base: BaseFacts) -> list[str]:
    """Return what a base does with rows of this length that is allowed and rarely intended."""
    context, length = base.context, config.hyperparameters.max_length + config.stage.drawn_tokens
    positions, window = context.positions, context.window
    if config.rope is not None and positions is not None:
        positions = int((config.rope.original_length or positions) * config.rope.factor)
    matches = []
    if positions is not None and context.is_table and length == positions:
        matches.append(f"max_length is {config.hyperparameters.max_length}: the base has {positions} positions.")
    if positions is not None and not context.is_table and length > positions:
        matches.append(
            f"Rows of up to {length} tokens are longer than the {positions} positions of the base: what lies beyond "
            "them it has never seen. Lower max_length, or scale its positions with `rope`."
        )
    if window is not None and length > window:
        matches.append(f"Each token sees the {window} tokens before it in this base, and rows have up to {length}.")
    return matches


NEEDS_EMBEDDED = each_target(lambda target: target.type is TargetType.EMBEDDED and target.url is None)
RUN_ROWS = (
    *BASE_ROWS,
    Row(
        "evaluator-mlx", "R-QUANTIZATION", "evaluator", "config.benchmarks", evaluates_mlx,
        "The base {base!r} is quantized for MLX, and the evaluator cannot read such weights.",
        "Train on the base in full precision, or remove the evaluator.", scope="run",
    ),
    Row(
        "teacher-vocabulary", "R-BASE-MISMATCH", "trainer", "config.stage.teacher", other_vocabulary,
        "The tokenizer of the teacher {config.stage.teacher!r} has {teacher} tokens, that of the student {student}: "
        "their probabilities cannot be compared.",
        "Use a teacher of the student's family, or let it write rows with an ai_generator and train stage sft.",
        scope="run",
    ),
    Row(
        "script-off", "R-SCRIPT-OFF", "trainer", "config.backend", switched_off,
        "Training scripts do not run here: {why}",
        "Use another backend, or run the script of `trainyard eject` by hand.", scope="run",
    ),
    Row(
        "path-root", "R-PATH-ROOT", "*", "config.{where}", data_paths,
        "{because}.", "{instead}.", scope="run",
    ),
    Row(
        "engine-unresolved", "R-ENDPOINT", "ai_generator", "config.model", no_endpoint,
        "No address is configured for the model {config.model!r}, and it is not replaced by another.",
        'Add [endpoints."{config.model}"] with base_url to trainyard.toml, or base_url here, or remove the model.',
        scope="run",
    ),
    Row(
        "endpoint-unknown", "R-ENDPOINT", "*", "config.{where}", unknown_endpoint,
        "trainyard.toml has no endpoint {endpoint!r}; it has {known}.",
        'Correct the name, or let the operator add [endpoints."{endpoint}"] with base_url and api_key_env.',
        scope="run",
    ),
    Row(
        "code-confinement", "R-CONFINEMENT", "trainer", "config.stage.{where}", runs_code,
        "Code that the model writes would run, and the operating system of this machine cannot confine it.",
        "Run it on Linux with user namespaces or Landlock, or let the operator set allow_unconfined_code in "
        "trainyard.toml.", scope="run",
    ),
    Row(
        "launch-open", "R-LAUNCH", "trainer", "config.launch", opens_network,
        "{servers} would listen on the network without a token, and this machine's operator has not allowed that.",
        "Let the operator set allow_open_network in trainyard.toml where the network is private, or train on one host.",
        scope="run",
    ),
    Row(
        "mirror-bucket", "R-MIRROR", "trainer", "config.engine.mirror", unlisted_bucket,
        "Checkpoints would be written to {config.engine.mirror!r} with this machine's credentials, and its operator "
        "has not listed that bucket.",
        "Let the operator add it to mirror_stores in trainyard.toml, or mirror to a folder.", scope="run",
    ),
    Row(
        "data-bucket", "R-SOURCE", "data_source", "config.{where}", unlisted_data,
        "{address!r} would be read with this machine's credentials, and its operator has not listed that bucket.",
        "Let the operator add it to data_buckets in trainyard.toml, or copy the data into a data root.", scope="run",
    ),
    Row(
        "data-worker-unlisted", "R-DATA-WORKER", "data_source", "config.{where}", unlisted_worker,
        "{worker} is not a data worker of this machine; its settings name {known}.",
        "Let the operator add it to data_workers in trainyard.toml, or serve with --data-workers.", scope="run",
    ),
    Row(
        "vllm-cuda", "R-DEVICE", "ai_generator", "config.engine",
        lambda config, at: config.engine is GeneratorKind.VLLM and lacks_device(Device.CUDA, at),
        "The engine vllm starts a server on a CUDA device, and this machine has none.",
        "Use engine openai with the address of a server, or engine local.", scope="run",
    ),
    Row(
        "vllm-missing", "R-PACKAGE-MISSING", "ai_generator", "config.engine",
        lambda config, at: config.engine is GeneratorKind.VLLM and bool(at.facts.vllm_install)
        and {"line": at.facts.vllm_install},
        "The engine vllm starts the program vllm, which is not installed here.",
        "Install it with `{line}`, or use engine openai or local.", scope="run",
    ),
    Row(
        "rollouts-cuda", "R-DEVICE", "trainer", "config.stage.rollouts.engine",
        lambda config, at: draws_by_vllm(config) and lacks_device(Device.CUDA, at),
        "vLLM draws completions on a CUDA device, and this machine has none.",
        "Use `rollouts: {{engine: native}}`, which draws with the model that is trained.", scope="run",
    ),
    Row(
        "rollouts-missing", "R-PACKAGE-MISSING", "trainer", "config.stage.rollouts.engine",
        lambda config, at: draws_by_vllm(config) and bool(at.facts.vllm_install) and {"line": at.facts.vllm_install},
        "Completions are drawn by the program vllm, which is not installed here.",
        "Install it with `{line}`, or use `rollouts: {{engine: native}}`.", scope="run",
    ),
    Row(
        "backend-missing", "R-BACKEND-MISSING", "trainer", "config.backend", no_backend,
        "The backend {config.backend} is not available here: {why}",
        "Use one of: {here}.", scope="run",
    ),
    Row(
        "service-no-key", "R-ENDPOINT", "trainer", "config.backend", has_no_key,
        "The {config.backend} backend needs a key, and {variable} is not set here.",
        "Set {variable} before `trainyard up`: the worker gets it, and no spec or log has it.", scope="run",
    ),
    Row(
        "package-missing", "R-PACKAGE-MISSING", "trainer", "config.{where}", no_package,
        "{value} needs {missing}, which is not installed here.", "Run `pip install '{install}'`.", scope="run",
    ),
    Row(
        "device-missing", "R-DEVICE", "trainer", "config.device", lambda config, at: lacks_device(config.device, at),
        "This machine has no device {config.device}.", "Use device auto, which takes what is here.", scope="run",
    ),
    Row(
        "fp16-cpu-here", "R-DEVICE", "trainer", "config.hyperparameters.precision",
        lambda config, at: config.hyperparameters.precision is Precision.FP16 and computes_on_cpu(config, at),
        "This machine computes on its CPU, and half precision is not applied there.",
        "Use precision auto, bf16 or fp32.", scope="run",
    ),
    Row(
        "engine-cuda-here", "R-DEVICE", "trainer", "config.engine.{name}", unfit_kernels_here,
        "The kernels of `{name}: {value}` are written for {written}, and this machine has no such device.",
        "Use `{name}: {instead}`, which takes what the device has.", scope="run",
    ),
    Row(
        "target-down", "R-TARGET-DOWN", "deployer", "config.targets.{index}.type",
        lambda config, at: at.facts.embedded is False and NEEDS_EMBEDDED(config, at),
        "The embedded model server is not running.", "Call `trainyard up`, or give the target a url.", scope="run",
    ),
)  # fmt: skip
