"""The page of imported keys: for each tool the keys that most configs have; the command has the others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.docs.markdown import cell, code, page, table
from trainyard.spec.imports.conversion import ConfigTool
from trainyard.spec.imports.keys import Config, describe
from trainyard.spec.imports.tools import TOOLS

INTRODUCTION = """\
```sh
trainyard import axolotl.yaml --report       # what becomes of every key of your config, and why
trainyard import axolotl.yaml -o chain.yaml  # the chain
```

No key is ignored. `mapped`: the chain says it too. `noted`: it does not need it, or says it with a difference.
`refused`: without it something else would be trained ([move from another tool](../import.md)). The tables have the
keys that most configs contain, by an example; the report has all that yours contains."""
SUBJECTS = (
    "model", "dataset|data_files|train_data", "stage|trainer_type|rl$", "adapter|finetuning_type|peft",
    "lora_r|lora_rank|^r$", "alpha", "dropout", "target", "learning_rate|(^|[._])lr$", "epoch", "max_steps",
    "batch_size", "accumulation", "max_length|sequence_len|cutoff|seq_len", "packing|packed", "optim", "sched",
    "warmup", "weight_decay", "bf16|dtype|precision", "load_in_4bit|quant", "template", "eval",
    "save_steps|checkpoint", "beta$", "seed",
)  # fmt: skip
"""What a config usually says, as patterns of keys; the first key of each that becomes a setting is shown."""


def imports_page() -> str:
    parts: list[str] = []
    for word, tool in TOOLS.items():
        parts += [f"## {tool.title}", count_keys(word, tool), keys_table(tool)]
    return page("Imported keys", INTRODUCTION, parts)


def count_keys(word: str, tool: ConfigTool) -> str:
    return f"`--from {word}`: {len(tool.keys)} keys and {len(tool.defaults)} defaults of the tool are read."


def keys_table(tool: ConfigTool) -> str:
    return table(["key", "example", "here"], [*dict.fromkeys(common_rows(tool))])


def common_rows(tool: ConfigTool) -> Iterator[tuple[str, ...]]:
    """Yield the row of the shortest key of each subject that becomes a setting."""
    rows = {}
    for key, (converter, example) in tool.keys.items():
        if settings := converter.convert(example, Config({})).settings:
            text = ", ".join(code(f"{name}: {value}") for name, value in settings.items())
            rows[key] = (code(key), cell(code(describe(example))), text)
    for subject in SUBJECTS:
        if keys := [key for key in rows if re.search(subject, key)]:
            yield rows[min(keys, key=lambda key: (len(key), key))]
