"""`python -m trainyard.backends.llamacpp.plan TOOLS FOLDER`: the text, the base as a GGUF file, and the account.

A process of its own, since it imports torch and transformers. Leaves `plan/plan.json`, written last, or an error.

llama-finetune reads plain text without control tokens, so a conversation is written as `user: … / assistant: …` (the
renderer role_colon), and that template goes with the result: it is served in the form in which it was trained. Every
token is learned and none is masked. Windows of a whole multiple of 256 tokens begin every half window.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import PreTrainedTokenizerBase

from trainyard.backends.external.plan import build_account
from trainyard.backends.external.runner import record_plan_errors
from trainyard.backends.frame import read_job
from trainyard.backends.job import TrainingJob
from trainyard.backends.llamacpp.back import comes_back
from trainyard.backends.rows import chat_lines, read_rows
from trainyard.backends.trl.loading import load_tokenizer
from trainyard.data.renderers.table import PLAIN_TEMPLATE, ROLE_COLON
from trainyard.data.renderers.tokenizer import choose_for_tokenizer
from trainyard.data.rows import SftRow
from trainyard.errors import InvalidInput
from trainyard.inherited import child_environment
from trainyard.json_types import JsonObject
from trainyard.serve.conversion.to_gguf import convert
from trainyard.spec.axes.stages import Stage
from trainyard.stores.whole import write_json_durably
from trainyard.train.rows.tokens import TokenLedger
from trainyard.workers.trainyard_worker import names

TEXT_FILE, BASE_FILE, SOURCE_FOLDER = "text.txt", "base.gguf", "source"
WINDOW = 256
"""llama.cpp rounds a context up to this, and gradients of keys and values need a batch of a whole context."""
COMPARED = 200_000
"""Characters of the text whose ids are compared between the two tokenizers."""


@dataclass(frozen=True)
class ContextWindows:
    """Context windows that llama-finetune makes of a text."""

    tokens: int
    context: int
    windows: int

    @classmethod
    def of(cls, tokens: int, max_length: int) -> ContextWindows:
        """As `common_opt_dataset_init` of llama.cpp counts: a window begins every half context."""
        context = WINDOW * -(-max_length // WINDOW)
        return cls(tokens, context, max(0, (tokens - context - 1) // (context // 2)))

    def planned(self, rows: int, epochs: int) -> JsonObject:
        """What the windows of all epochs train: each token of a window, so most tokens of the text twice an epoch."""
        tokens = {"trained": self.windows * self.context * epochs, "masked": 0}
        return {"tokens": tokens, "rows": {"trained": rows * epochs}, "counted": "plan"}

    def ledger(self, rows: int, held_out: int) -> TokenLedger:
        covered = (self.windows - 1) * (self.context // 2) + self.context + 1
        counts = Counter({"read": rows, "trained": rows, "held_out": held_out})
        return TokenLedger(self.tokens, covered - 1, 1, 0, self.tokens - covered, counts)


def write_plan(tools: Path, folder: Path) -> None:
    job = read_job(folder)
    plan_folder, base = folder / names.PLAN_FOLDER, Path(job.base)
    if not base.is_dir():
        raise InvalidInput(
            f"The base {job.base!r} is not a folder on this machine.",
            why="llama.cpp converts files; it downloads nothing here.",
            do="Download the model and name its folder as base_model.",
            code="E-CONVERT",
        )
    tokenizer = load_tokenizer(job)
    if job.config.stage.type is Stage.SFT:
        tokenizer.chat_template = choose_for_tokenizer(tokenizer, ROLE_COLON.name).text
    tokenizer.save_pretrained(plan_folder / names.TOKENIZER_FOLDER)
    text, counts = render_text(job)
    (plan_folder / TEXT_FILE).write_text(text, encoding="utf-8")
    source = with_tokenizer(base, plan_folder / names.TOKENIZER_FOLDER, plan_folder / SOURCE_FOLDER)
    convert(tools, source, plan_folder / BASE_FILE)
    require_same_ids(tools, plan_folder, tokenizer, text[:COMPARED])
    account = ContextWindows.of(len(encode_text(tokenizer, text)), job.config.hyperparameters.max_length)
    require_windows(account)
    epochs = int(job.config.hyperparameters.epochs or 3)
    value = {
        "context": account.context,
        "steps_per_epoch": account.windows,
        "total_steps": account.windows * epochs,
        "epochs": epochs,
        "lora": None,
        "comes_back": comes_back(plan_folder / BASE_FILE, base),
        "account": account.planned(counts["written"], epochs),
        "ledger": build_account(account.ledger(counts["written"], counts["held_out"]), tokenizer),
    }
    write_json_durably(plan_folder / names.PLAN_FILE, value)


def render_text(job: TrainingJob) -> tuple[str, dict[str, int]]:
    """Return the rows as one text, and how many were read, written and held out.

    Raises `InvalidInput` (`E-CONVERT`) for a turn without loss: llama-finetune learns every token.
    """
    counts = Counter({"read": 0, "written": 0, "held_out": 0})
    rows = list(read_rows(job))
    if any(not message.learned for row in rows if isinstance(row, SftRow) for message in row.messages):
        raise InvalidInput(
            "The rows have turns with weight 0, and llama.cpp's trainer gives every token a loss.",
            do="Train with backend native or trl, or take those turns or their weights out of the data.",
            code="E-CONVERT",
        )
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(PLAIN_TEMPLATE)
    pieces = [
        template.render(messages=line["messages"], eos_token="") if "messages" in line else f"{line['text']}\n"
        for line in chat_lines(rows, counts)
    ]
    return "".join(pieces), counts


def with_tokenizer(base: Path, tokenizer: Path, target: Path) -> Path:
    """Return the base with the tokenizer of the result, by links: its chat template is the one that is served."""
    target.mkdir(exist_ok=True)
    for folder in (base, tokenizer):
        for path in folder.iterdir():
            link = target / path.name
            link.unlink(missing_ok=True)
            if path.is_file():
                link.symlink_to(path.resolve())
    return target


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of a text in which control tokens are text, as llama-finetune reads it."""
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
    return list(ids["input_ids"])


def require_same_ids(tools: Path, plan_folder: Path, tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """Both tokenizers have to agree on the text itself. Raises `InvalidInput` (`E-CONVERT`)."""
    sample = plan_folder / "sample.txt"
    sample.write_text(text, encoding="utf-8")
    options = ["--ids", "--no-bos", "--no-parse-special", "--log-disable"]
    argv = [str(tools / "bin" / "llama-tokenize"), "-m", str(plan_folder / BASE_FILE), "-f", str(sample), *options]
    ran = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        env=child_environment(),
    )  # fmt: skip
    llamacpp_ids = json.loads(ran.stdout or "null")
    base_ids = encode_text(tokenizer, text)
    if llamacpp_ids == base_ids:
        return
    first = next(
        (at for at, pair in enumerate(zip(base_ids, llamacpp_ids or [], strict=False)) if pair[0] != pair[1]),
        len(base_ids),
    )
    raise InvalidInput(
        "llama.cpp cuts the text into other tokens than the base's own tokenizer.",
        why=f"They differ from token {first} on, of {len(base_ids):,}.",
        do="Use a base of a family that llama.cpp knows, or another backend.",
        code="E-CONVERT",
    )


def require_windows(account: ContextWindows) -> None:
    if account.windows:
        return
    least = account.context + 1 + account.context // 2
    raise InvalidInput(
        f"The text has {account.tokens} tokens, and llama-finetune needs at least {least} for one step.",
        why=f"It trains on windows of {account.context} tokens, of which one begins every half window.",
        do="Give it more rows, or lower max_length (to no less than 256), or use another backend.",
        code="E-DATA-EMPTY",
    )


if __name__ == "__main__":
    with record_plan_errors(Path(sys.argv[2])):
        write_plan(Path(sys.argv[1]), Path(sys.argv[2]))
