"""`python -m trainyard.backends.llamacpp.finish TOOLS FOLDER LAST`: the result of the last epoch's GGUF file `LAST`.

Leaves `made/weights`: a model of transformers if the base came back from its own GGUF file bit for bit, and with it
`gguf/model-f32.gguf` with the tokenizer, the template and the length of context of the base. A process of its own.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import orjson

from trainyard.backends.external.runner import record_plan_errors
from trainyard.backends.frame import read_job
from trainyard.backends.llamacpp.back import write_back
from trainyard.backends.llamacpp.plan import with_tokenizer
from trainyard.serve.conversion.to_gguf import convert, reach
from trainyard.workers.trainyard_worker import names

GGUF_FOLDER, GGUF_FILE = "gguf", "model-f32.gguf"


def finish(tools: Path, folder: Path, last: Path) -> None:
    job = read_job(folder)
    plan_folder, weights = folder / names.PLAN_FOLDER, folder / names.MADE_FOLDER / "weights"
    plan = orjson.loads((plan_folder / names.PLAN_FILE).read_bytes())
    shutil.rmtree(weights, ignore_errors=True)
    (weights / GGUF_FOLDER).mkdir(parents=True)
    reach(tools)
    if not plan["comes_back"]:
        shutil.copyfile(last, weights / GGUF_FOLDER / GGUF_FILE)
        shutil.copyfile(Path(job.base) / "config.json", weights / "config.json")
        return
    write_back(last, Path(job.base), weights)
    # What llama-finetune writes has neither the template nor the context of the base; the converter writes both.
    source = with_tokenizer(weights, plan_folder / names.TOKENIZER_FOLDER, folder / names.MADE_FOLDER / "source")
    convert(tools, source, weights / GGUF_FOLDER / GGUF_FILE)


if __name__ == "__main__":
    with record_plan_errors(Path(sys.argv[2])):
        finish(*(Path(argument) for argument in sys.argv[1:4]))
