"""Do imports take what the tools do where a config leaves a key out?

    pip download --no-deps -d DIR axolotl llamafactory oumi torchtune unsloth
    python -m benchmarks.import_defaults DIR

DIR (or TRAINYARD_TOOL_WHEELS) has wheels of the tools. Their sources are read, not run: each default in `FACTS` is
looked up in the class or function that has it, and has to be the value of the table.
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import SHORT

VARIABLE = "TRAINYARD_TOOL_WHEELS"


@dataclass(frozen=True)
class Fact:
    """A default of a tool: the key of its config, the value, and where its package has it."""

    key: str
    value: Any
    file: str = ""
    owner: str = ""
    """Class, function or `Class.method` that has it."""
    name: str = ""
    """Of the field or argument, where it is not the key's last part."""

    @property
    def field(self) -> str:
        return self.name or self.key.rpartition(".")[2]


def facts(file: str, owner: str, group: str = "", /, **values: Any) -> list[Fact]:
    return [Fact(f"{group}{key}", value, file, owner) for key, value in values.items()]


AXOLOTL, LLAMA = "axolotl/utils/schemas", "llamafactory/hparams"
OUMI, TUNE = "oumi/core/configs/params", "torchtune"
VERSIONS = {
    "axolotl": "0.19.0", "llamafactory": "0.9.5", "oumi": "0.9", "torchtune": "0.6.1", "unsloth": "2026.10.9",
}  # fmt: skip
FACTS: Mapping[str, list[Fact]] = {
    "axolotl": [
        *facts(f"{AXOLOTL}/training.py", "HyperparametersConfig", gradient_accumulation_steps=1, micro_batch_size=1,
               weight_decay=0.0, optimizer="adamw_torch_fused", lr_scheduler="cosine", num_epochs=1.0),
        *facts(f"{AXOLOTL}/config.py", "AxolotlInputConfig", sequence_len=512, bf16="auto",
               gradient_checkpointing=False),
        *facts(f"{AXOLOTL}/peft.py", "LoraConfig", lora_dropout=0.0),
    ],
    "llamafactory": [
        *facts(f"{LLAMA}/data_args.py", "DataArguments", cutoff_len=2048),
        *facts(f"{LLAMA}/finetuning_args.py", "LoraArguments", lora_rank=8, lora_dropout=0.0, lora_target="all"),
        *facts(f"{LLAMA}/model_args.py", "BaseModelArguments", disable_gradient_checkpointing=False),
    ],
    "oumi": [
        *facts(f"{OUMI}/training_params.py", "TrainingParams", "training.", enable_gradient_checkpointing=False,
               per_device_train_batch_size=8, gradient_accumulation_steps=1, num_train_epochs=3, seed=42,
               learning_rate=5e-5, lr_scheduler_type="linear", optimizer="adamw_torch", weight_decay=0.0,
               max_grad_norm=1.0),
        *facts(f"{OUMI}/peft_params.py", "PeftParams", "peft.", lora_r=8, lora_alpha=8, lora_dropout=0.0),
        *facts(f"{OUMI}/data_params.py", "DatasetSplitParams", "data.train.", pack=False),
    ],
    "torchtune": [
        *facts(f"{TUNE}/models/llama3/_model_builders.py", "lora_llama3_8b", "model.", lora_rank=8, lora_alpha=16,
               lora_dropout=0.0),
        *facts(f"{TUNE}/datasets/_chat.py", "chat_dataset", "dataset.", packed=False),
    ],
    "unsloth": [
        *facts("unsloth_cli/config.py", "TrainingConfig", "training.", max_seq_length=2048, num_epochs=3,
               learning_rate=2e-4, batch_size=2, gradient_accumulation_steps=4, warmup_steps=5, weight_decay=0.01,
               random_seed=3407, packing=False, gradient_checkpointing="unsloth"),
        *facts("unsloth_cli/config.py", "LoraConfig", "lora.", lora_r=64, lora_alpha=16, lora_dropout=0.0,
               target_modules="q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"),
    ],
}  # fmt: skip
"""Tool -> defaults that an import has to write where a config leaves the keys out."""
DECIDING: Mapping[str, list[Fact]] = {
    "axolotl": [
        *facts(f"{AXOLOTL}/training.py", "HyperparametersConfig", train_on_inputs=False),
        *facts(f"{AXOLOTL}/config.py", "AxolotlInputConfig", val_set_size=0.0),
    ],
    "llamafactory": [
        *facts(f"{LLAMA}/data_args.py", "DataArguments", train_on_prompt=False, mask_history=False),
        *facts(f"{LLAMA}/finetuning_args.py", "LoraArguments", lora_alpha=None, use_rslora=False),
        *facts(f"{LLAMA}/finetuning_args.py", "FreezeArguments", freeze_trainable_layers=2),
        *facts(f"{LLAMA}/finetuning_args.py", "RLHFArguments", pref_beta=0.1, pref_loss="sigmoid", simpo_gamma=0.5,
               dpo_label_smoothing=0.0, kto_chosen_weight=1.0, kto_rejected_weight=1.0),
        *facts(f"{LLAMA}/finetuning_args.py", "FinetuningArguments", stage="sft", finetuning_type="lora"),
    ],
    "oumi": [
        *facts(f"{OUMI}/peft_params.py", "PeftParams", "peft.", lora_target_modules=None, bnb_4bit_quant_type="fp4"),
        *facts(f"{OUMI}/grpo_params.py", "GrpoParams", "training.grpo.", temperature=0.9, epsilon=0.2),
        *facts(f"{OUMI}/model_params.py", "ModelParams", "model.", model_max_length=None),
        *facts(f"{OUMI}/data_params.py", "DatasetSplitParams", "data.train.", collator_name=None, train_target=None),
        *facts(f"{OUMI}/training_params.py", "TrainingParams", "training.", use_peft=False, sgd_momentum=0.0),
    ],
    "torchtune": [
        *facts(f"{TUNE}/datasets/_alpaca.py", "alpaca_dataset", "dataset.", train_on_input=True),
        *facts(f"{TUNE}/datasets/_chat.py", "chat_dataset", "dataset.", train_on_input=False),
        *facts(f"{TUNE}/datasets/_instruct.py", "instruct_dataset", "dataset.", train_on_input=False),
        *facts(f"{TUNE}/rlhf/loss/dpo.py", "DPOLoss.__init__", "loss.", beta=0.1, label_smoothing=0.0),
        *facts(f"{TUNE}/rlhf/loss/dpo.py", "RSOLoss.__init__", "loss.", gamma=0.1),
    ],
    "unsloth": [
        *facts("unsloth_cli/config.py", "TrainingConfig", "training.", load_in_4bit=True, train_on_completions=False,
               training_type="lora"),
        *facts("unsloth_cli/config.py", "DataConfig", "data.", format_type="auto"),
    ],
}  # fmt: skip
"""Tool -> defaults from which an import concludes something else: a stage, a method, a refusal."""


def default_in(tree: ast.Module, owner: str, name: str) -> Any:
    """The default of a field of a class, or of an argument of a function. Raises `LookupError` if there is none."""
    node: Any = tree
    for part in owner.split("."):
        node = next((statement for statement in node.body if getattr(statement, "name", "") == part), None)
        if node is None:
            raise LookupError(f"no {owner}")
    default = field_default(node, name) if isinstance(node, ast.ClassDef) else argument_default(node, name)
    if default is None:
        raise LookupError(f"no default of {owner}.{name}")
    return ast.literal_eval(default)


def field_default(node: ast.ClassDef, name: str) -> ast.expr | None:
    for statement in node.body:
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and statement.target.id == name
        ):
            if not isinstance(statement.value, ast.Call):
                return statement.value
            named = next((key.value for key in statement.value.keywords if key.arg == "default"), None)
            return named or next(iter(statement.value.args), None)
    return None


def argument_default(node: ast.FunctionDef, name: str) -> ast.expr | None:
    arguments = node.args
    plain = zip(reversed([*arguments.posonlyargs, *arguments.args]), reversed(arguments.defaults), strict=False)
    pairs = [*plain, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return next((value for argument, value in pairs if argument.arg == name), None)


def compare_wheels(folder: Path) -> Iterator[tuple[str, Fact, Any]]:
    """Each fact of the tools whose wheels are in a folder, with what the wheel has; an exception where it has none."""
    for tool in FACTS:
        for path in sorted(folder.glob(f"{tool}-*.whl")):
            with zipfile.ZipFile(path) as wheel:
                for fact in (*FACTS[tool], *DECIDING[tool]):
                    try:
                        default = default_in(ast.parse(wheel.read(fact.file)), fact.owner, fact.field)
                    except (LookupError, ValueError) as error:
                        default = error
                    yield tool, fact, default


def write_own_wheels(folder: Path) -> None:
    """Write wheels whose sources have the defaults of the tables, for the short form."""
    for tool in FACTS:
        sources: dict[str, dict[str, list[str]]] = {}
        for fact in (*FACTS[tool], *DECIDING[tool]):
            fields = sources.setdefault(fact.file, {}).setdefault(fact.owner, [])
            fields.append(f"{fact.field}: object = {fact.value!r}")
        with zipfile.ZipFile(folder / f"{tool}-0-py3-none-any.whl", "w") as wheel:
            for file, owners in sources.items():
                wheel.writestr(file, "\n".join(definition(owner, fields) for owner, fields in owners.items()))


def definition(owner: str, fields: list[str]) -> str:
    """Return the source of a class with fields, or of a function or method with arguments."""
    name, _, method = owner.partition(".")
    if method:
        return f"class {name}:\n    def {method}(self, {', '.join(fields)}): pass"
    return f"def {name}({', '.join(fields)}): pass" if name.islower() else "\n    ".join([f"class {name}:", *fields])


def main() -> None:
    if SHORT:
        with tempfile.TemporaryDirectory() as wheel_folder:
            write_own_wheels(Path(wheel_folder))
            compare(Path(wheel_folder))
    compare(Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get(VARIABLE, ".")))


def compare(folder: Path) -> None:
    """Print the defaults that differ and exit."""
    wrong = compared = 0
    for tool, fact, default in compare_wheels(folder):
        compared += 1
        if default != fact.value:
            wrong += 1
            print(f"{tool:14}{fact.key:48}{fact.value!r:>20} here, {default!r} there")
    print(f"{compared} defaults compared, {wrong} differ")
    sys.exit(1 if wrong or not compared else 0)


if __name__ == "__main__":
    main()
