"""The model card of an adapter version: Markdown with the YAML header of the Hub.

Everything in it is read from the version: `training.json`, the adapter's config, the verdict of its gate. It says
nothing that is not known, and shows a way of loading only where the adapter's format has one.

source: https://huggingface.co/docs/hub/model-cards (metadata), PEFT, vLLM, llama.cpp, ollama and mlx-lm documentation
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.serve.conversion.architectures import ARCHITECTURES, require_plain
from trainyard.serve.targets.ollama import go_template
from trainyard.serve.trial import find_base_folder, read_object
from trainyard.serve.version_facts import Improvement, VersionReport, check_facts, hub_base, public_base
from trainyard.settings import Settings
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.training import STARTER
from trainyard.stores.adapters import CARD_FILE, RUN, RUN_BECAUSE, AdapterRegistry, AdapterVersion
from trainyard.stores.files import DISK
from trainyard.stores.ledger.proofs import PROOF_FILE, find_training
from trainyard.stores.models import chat_template, template_dirs
from trainyard.stores.whole import write_whole

LIBRARY = {"adapter": "peft", "model": "transformers"}


@dataclass(frozen=True)
class CardFacts:
    """Contents of a card."""

    version: AdapterVersion
    training: JsonMapping
    config: JsonMapping
    """PEFT's; empty for a whole model."""
    base: str
    """Base in the snippets: its name on the Hub, or a word for its folder."""
    repository: str
    """Source of the adapter in the snippets."""
    model_type: str
    """Of the base; empty where its config is not on this machine."""
    template: str = ""
    """The chat template of the training; empty if the version has none."""
    origin: str = ""
    """How it is introduced outside the registry."""

    @property
    def method(self) -> Method:
        if self.config.get("use_dora"):
            return Method.DORA
        return Method.OFT if self.config.get("peft_type") == "OFT" else Method.LORA

    @property
    def source(self) -> str:
        """Return what a conversion takes: the version, else the folder."""
        return self.repository if self.origin else self.version.name

    def serves(self, target: TargetType) -> bool:
        """Whether this kind of server takes the adapter, by the row of the target."""
        facts = target.facts
        whole = bool(self.config.get("modules_to_save"))
        if self.method not in facts.methods or (whole and not facts.whole_modules):
            return False
        if facts.converts_to is None:
            return True
        has_architecture = facts.converts_to != "GGUF" or self.model_type in ARCHITECTURES
        return has_architecture and is_plain(self.config)


def write_card(
    version: AdapterVersion,
    folder: Path,
    repository: str = "",
    base: str = "",
    origin: str = "",
    *,
    home: Path | None = None,
) -> str:
    """Return the card of a version whose files are in `folder`.

    `repository` is where its code loads it from: the Hub's name of where it is published, or a folder. `base` is the
    folder of its base where that is known, `origin` introduces an adapter outside the registry. `home` has the ledger
    in which its training is.
    """
    training, config = read_object(folder / "training.json"), read_object(folder / "adapter_config.json")
    base_config = Path(str(training.get("base_path") or "")) / "config.json"
    facts = CardFacts(
        version=version,
        training=training,
        config=config,
        base=base or hub_base(version) or "path/to/base",
        origin=origin,
        repository=repository or "path/to/adapter",
        model_type=str(read_object(base_config).get("model_type") or "") if base_config.is_file() else "",
        template=next(filter(None, map(chat_template, template_dirs(folder))), ""),
    )
    parts = [
        header(facts),
        f"# {Path(repository).name if origin else version.alias}",
        introduction(facts),
        "## Training",
        training_text(facts),
    ]
    parts += ["## Data", data_text(facts), "## Evaluation", evaluation_text(facts)]
    parts += [
        "## How to load it",
        *snippets(facts),
        "## Limits",
        limits_text(facts),
        "## Provenance",
        origin_text(facts),
        *(["## Ledger", ledger_text(version, home)] if home is not None else []),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def is_plain(config: Mapping[str, object]) -> bool:
    try:
        require_plain(config)
    except InvalidInput:
        return False
    return True


def header(facts: CardFacts) -> str:
    """Return the YAML block; JSON values are YAML. A license is given only where it is known: a base may demand one."""
    lines: dict[str, object] = {"library_name": LIBRARY.get(facts.version.kind, "transformers")}
    if name := hub_base(facts.version):
        lines |= {"base_model": name, "base_model_relation": "adapter" if facts.config else "finetune"}
    tags = ["trainyard", *([str(facts.config["peft_type"]).lower()] if facts.config.get("peft_type") else [])]
    tags += [str(facts.training[key]) for key in ("stage",) if facts.training.get(key)]
    lines |= {"pipeline_tag": "text-generation", "tags": list(dict.fromkeys(tags))}
    if results := list_results(facts):
        lines |= {"model-index": [{"name": facts.version.alias, "results": results}]}
    return "\n".join(["---", *(f"{key}: {json.dumps(value)}" for key, value in lines.items()), "---"])


def list_results(facts: CardFacts) -> list[JsonObject]:
    """Return the benchmarks in the form of a model index, each with the interval of its improvement."""
    report = check_facts(facts.version.facts, facts.version.name).report or VersionReport()
    results: list[JsonObject] = []
    for label, line in report.benchmarks.items():
        name, _, part = label.partition("/")
        args: JsonObject = {"baseline": line.baseline, "improvement": line.improvement.mean, "rows": line.rows}
        if line.improvement.low is not None:
            args |= {"low": line.improvement.low, "high": line.improvement.high, "confidence": report.confidence}
        metric = {"type": name, "name": name.replace("_", " "), "value": line.candidate, "args": args}
        held_out = {"type": "held-out", "name": (part or "held out rows").replace("_", " ")}
        results.append({"task": {"type": "text-generation"}, "dataset": held_out, "metrics": [metric]})
    return results


def introduction(facts: CardFacts) -> str:
    kind = f"A {facts.method.value} adapter for" if facts.config else "A model that was fine-tuned from"
    version_facts = facts.version.facts
    base, digest = public_base(facts.version) or "an unnamed base", version_facts.get("base_sha256")
    named = f"`{base}`" + (f" (SHA-256 of its files: `{digest}`)" if digest else "")
    return f"{kind} {named}, {facts.origin or f'trained and registered as `{facts.version.name}` by Trainyard'}."


def training_text(facts: CardFacts) -> str:
    """Return the recipe, as `training.json` has it."""
    training, hyper = facts.training, facts.training.get("hyperparameters") or {}
    if not training:
        return "Nothing is recorded about its training."
    rows = [(key, training.get(key)) for key in ("stage", "method", "backend", "steps", "epochs", "seconds")]
    keys = ("learning_rate", "batch_size", "gradient_accumulation", "max_length", "optimizer", "schedule")
    rows += [(key, hyper.get(key)) for key in (*keys, "weight_decay", "warmup_ratio", "seed")]
    rows += [("rank", facts.config.get("r")), ("alpha", facts.config.get("lora_alpha"))]
    rows += [("precision", training.get("precision")), ("device", training.get("device"))]
    rows += [("first and last loss", losses(training)), ("chat template (SHA-256)", template_sha256(facts))]
    rows += [(f"version of {name}", value) for name, value in (training.get("versions") or {}).items()]
    return format_table(
        ("setting", "value"), [(key, format_value(value)) for key, value in rows if value not in (None, "")]
    )


def losses(training: JsonMapping) -> str:
    ends = [training.get("loss_at_start"), training.get("loss_at_end")]
    return " → ".join(format_value(end) for end in ends) if all(end is not None for end in ends) else ""


def template_sha256(facts: CardFacts) -> str:
    return str(facts.version.facts.get("chat_template_sha256") or facts.training.get("chat_template_sha256") or "")


def data_text(facts: CardFacts) -> str:
    """Return what it was trained on: sources with digests where the deployment has recorded them, and the counts."""
    data = facts.version.facts.get("data")  # of a night it has the counts of the training
    sources: Sequence[Mapping[str, object]] = data if isinstance(data, list | tuple) else ()
    keys = ("source", "format", "rows", "sha256", "license")
    listed = (
        format_table(keys, [[format_value(source.get(key)) for key in keys] for source in sources]) if sources else ""
    )
    counted = facts.training.get("data") or {}
    parts = {name: part for name, part in counted.items() if name != "sets"}
    parts |= {f"tokens of {name}": part for name, part in (counted.get("sets") or {}).items()}
    rows = [
        [name, *(format_value(part.get(key)) for key in ("read", "trained", "truncated"))]
        for name, part in parts.items()
    ]
    counts = format_table(("", "read", "trained", "truncated"), rows) if rows else ""
    unknown = "" if any(source.get("license") for source in sources) else "The license of the data is not recorded."
    return "\n\n".join(part for part in (listed, counts, unknown) if part)


def evaluation_text(facts: CardFacts) -> str:
    """Return each benchmark with the interval of its improvement, and the verdict."""
    verdict: JsonMapping = facts.version.facts.get("gate") or {}
    report = check_facts(facts.version.facts, facts.version.name).report or VersionReport()
    if not verdict:
        return "It was not evaluated."
    lines = [f"Compared with {report.baseline or 'its baseline'} on rows that the training did not see."]
    rows = [
        (
            name,
            format_value(benchmark.rows),
            format_value(benchmark.baseline),
            format_value(benchmark.candidate),
            interval(benchmark.improvement),
        )
        for name, benchmark in report.benchmarks.items()
    ]
    if rows:
        lines.append(format_table(("benchmark", "rows", "baseline", "adapter", "improvement"), rows))
        lines.append(f"Intervals: {report.confidence:.0%}, bootstrap over independent cases; positive is better.")
    else:
        lines += [f"- {reason}" for reason in verdict.get("passed") or verdict.get("reasons") or ()]
    return "\n\n".join([*lines, *map(str, verdict.get("cautions") or ())])


def interval(improvement: Improvement) -> str:
    if improvement.low is None or improvement.high is None:
        return f"{improvement.mean:+.4f}"
    return f"{improvement.mean:+.4f} [{improvement.low:+.4f}, {improvement.high:+.4f}]"


def snippets(facts: CardFacts) -> list[str]:
    """Return how each tool that can load it does."""
    blocks = []
    for name, fits, language, write in SNIPPETS:
        if fits(facts):
            blocks += [f"### {name}", f"```{language}\n{write(facts)}\n```"]
    return blocks


def with_transformers(facts: CardFacts) -> str:
    if not facts.config:
        return f"""from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{facts.repository}")
tokenizer = AutoTokenizer.from_pretrained("{facts.repository}")
{ANSWER}"""
    return f"""from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained("{facts.base}")
model = PeftModel.from_pretrained(base, "{facts.repository}")
tokenizer = AutoTokenizer.from_pretrained("{facts.repository}", subfolder="tokenizer")
{ANSWER}"""


ANSWER = """messages = [{"role": "user", "content": "What is this about?"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
tokens = model.generate(**inputs, max_new_tokens=64, do_sample=False)
print(tokenizer.decode(tokens[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True))"""


def with_vllm(facts: CardFacts) -> str:
    if not facts.config:
        return f"vllm serve {facts.repository}"
    role, rank = facts.version.role, max(16, int(facts.config.get("r") or 0))
    return (
        f"vllm serve {facts.base} --enable-lora --max-lora-rank {rank} \\\n  --lora-modules "
        f"{role}={facts.repository} --chat-template tokenizer/chat_template.jinja"
    )


def with_llamacpp(facts: CardFacts) -> str:
    return (
        f"trainyard adapters convert {facts.source} {facts.version.role}.gguf --to gguf\nllama-server -m base.gguf "
        f"--lora {facts.version.role}.gguf --jinja --chat-template-file tokenizer/chat_template.jinja"
    )


def with_ollama(facts: CardFacts) -> str:
    """Return the adapter with the chat template of its training: ollama would take that of the base."""
    role, quotes = facts.version.role, '"""'
    lines = ["FROM ./base.gguf", f"ADAPTER ./{role}.gguf"]
    if facts.template and (template := go_template(facts.template)):
        lines += [f"TEMPLATE {quotes}{template.text}{quotes}"]
        lines += [f"PARAMETER stop {quotes}{stop}{quotes}" for stop in template.stop]
    return "\n".join(["cat > Modelfile <<'END'", *lines, "END", f"ollama create {role} -f Modelfile"])


def with_mlx(facts: CardFacts) -> str:
    role = facts.version.role
    return (
        f"trainyard adapters convert {facts.source} {role}-mlx --to mlx\nmlx_lm.server --model {facts.base} "
        f"--adapter-path {role}-mlx"
        + (' --chat-template "$(cat tokenizer/chat_template.jinja)"' if facts.template else "")
    )


def runs_in_ollama(facts: CardFacts) -> bool:
    """Whether ollama takes the adapter, and one of its templates writes what the chat template does."""
    return facts.serves(TargetType.OLLAMA) and not (facts.template and go_template(facts.template) is None)


Snippet = tuple[str, Callable[[CardFacts], bool], str, Callable[[CardFacts], str]]
SNIPPETS: tuple[Snippet, ...] = (
    ("transformers", lambda _: True, "python", with_transformers),
    ("vLLM", lambda facts: not facts.config or facts.serves(TargetType.VLLM), "sh", with_vllm),
    ("llama.cpp", lambda facts: bool(facts.config) and facts.serves(TargetType.LLAMA_SERVER), "sh", with_llamacpp),
    ("Ollama", lambda facts: bool(facts.config) and runs_in_ollama(facts), "sh", with_ollama),
    ("MLX", lambda facts: bool(facts.config) and facts.serves(TargetType.MLX), "sh", with_mlx),
)
"""Name, whether it can load the version, language, text. To add one: a row."""


def limits_text(facts: CardFacts) -> str:
    length = (facts.training.get("hyperparameters") or {}).get("max_length")
    lines = [
        "It answers as trained only on its own base and under its own chat template; their digests are above.",
        *([f"It was trained on texts of at most {length} tokens."] if length else []),
        *(
            [f"It was never run on its base where it was registered: {facts.version.facts.get(RUN_BECAUSE)}."]
            if facts.version.facts.get(RUN) is False
            else []
        ),
        "It was measured on the sets above and on nothing else: not for safety, bias, or other languages.",
    ]
    if facts.version.facts.get("base_model") == STARTER:
        lines.append("Its base is the small model that comes with Trainyard, which is made for trying things out.")
    return "\n".join(f"- {line}" for line in lines)


def origin_text(facts: CardFacts) -> str:
    """Digest of the version, and the weights that it comes from, oldest first."""
    rows = [] if facts.origin else [(f"`{facts.version.name}`", f"`{facts.version.sha256}`")]
    steps = facts.training.get("lineage") or ()
    rows += [(" ".join(filter(None, (step.get("stage"), step.get("method")))) or "base", f"`{step.get('sha256')}`")
             for step in steps]  # fmt: skip
    return format_table(("what", "SHA-256"), rows)


def ledger_text(version: AdapterVersion, home: Path) -> str:
    """Return the entry of the training in the ledger of a home, and how it is checked.

    Nothing in it changes when the log grows, so that the same version has the same card.
    """
    proven = find_training(home, version.sha256)
    if proven is None:
        return "The ledger of the home that registered it has no training that made these files."
    entry = proven.entry
    rows = [
        ("entry", str(proven.seq)), ("key of the entry", f"`{entry['key']}`"), ("leaf (SHA-256)", f"`{proven.leaf}`"),
        ("log and its key", f"`{proven.vkey}`"), ("weights (SHA-256)", f"`{entry.get('weights_sha256', '')}`"),
        ("recipe (SHA-256)", f"`{entry.get('recipe_sha256', '')}`"),
    ]  # fmt: skip
    check = f"`{PROOF_FILE}`, which is published with this card, proves that the entry is in the log (C2SP). "
    again = f"`trainyard reproduce {proven.seq}` trains it again and compares the digests."
    limit = "The log is tamper-evident: who has its key and its disk can write another one."
    return "\n\n".join((format_table(("what", "value"), rows), f"{check}{again} {limit}"))


def format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else " ".join(str(value).replace("|", "\\|").replace("<", "&lt;").split())


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def keep_card(version: AdapterVersion, registry: AdapterRegistry, settings: Settings) -> AdapterVersion:
    """Write the card of a version into its folder, next to the manifest: its code loads it from there.

    The manifest does not describe it, because it says what was found out later, too. A README of the
    adapter's own stays.
    """
    if CARD_FILE not in version.files:
        folder = registry.path(version)
        base, _ = find_base_folder(folder, settings)
        card = write_card(version, folder, repository=str(folder), base=str(base or ""), home=settings.home)
        write_whole(DISK, folder / CARD_FILE, card.encode())
    return version
