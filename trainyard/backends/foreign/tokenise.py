"""The rows of a job as token ids and labels, the very ones that our own engine would train on (imports torch)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import orjson
import tokenizers
import transformers
from transformers import AutoTokenizer

from trainyard.backends.frame import read_job
from trainyard.backends.rows import LEDGER_FILE, TOKENS_FILE, rows_of
from trainyard.stores.artifacts import write_json_durably
from trainyard.train.stages.table import STAGES
from trainyard.train.templates import PLAIN_TEMPLATE
from trainyard.train.tokens import require_targets


def tokenise(folder: Path) -> None:
    """Write `tokens.jsonl` and `ledger.json` for the job of `folder/spec.json` (sft, cpt).

    A line of rows is {"input_ids", "labels"}; a label is the id itself or -100 where no loss is taken, not shifted. The
    ledger holds `tokens` {read, trained, masked, truncated, dropped}, `rows`, the chat template and its digest.
    Raises what the data and the template raise (`E-ALL-MASKED`, `E-NO-DATA` …).
    """
    job = read_job(folder)
    tokenizer = AutoTokenizer.from_pretrained(job.base, trust_remote_code=False)
    if not tokenizer.chat_template:
        tokenizer.chat_template = PLAIN_TEMPLATE
    examples, ledger = STAGES[job.config.stage].encode(rows_of(job), tokenizer, job.config)
    require_targets(ledger)
    temporary = folder / f".{TOKENS_FILE}.tmp"
    with temporary.open("wb") as stream:
        for example in examples:
            line = {name: example[name] for name in ("input_ids", "labels")}
            stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    temporary.replace(folder / TOKENS_FILE)
    template = tokenizer.chat_template
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    account = {
        "tokens": ledger.tokens(),
        "rows": dict(ledger.rows),
        "line": ledger.line(),
        "chat_template": text,
        "chat_template_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "versions": {module.__name__: module.__version__ for module in (transformers, tokenizers)},
    }
    write_json_durably(folder / LEDGER_FILE, account)
