"""The token rows of each step of the Tinker cookbook's `sl_loop`, by its own functions: one JSON line a step.

    python tinker_cookbook_batches.py MODEL BATCH_SIZE STEPS MAX_LENGTH

It runs in an environment with `tinker-cookbook`, in the folder of the loop. Labels are -100 where nothing is learned.
"""

from __future__ import annotations

import json
import sys

import datasets
from tinker_cookbook import model_info, renderers
from tinker_cookbook.supervised.data import conversation_to_datum
from tinker_cookbook.tokenizer_utils import get_tokenizer

IGNORED = -100


def main(model: str, batch_size: int, steps: int, max_length: int) -> None:
    renderer = renderers.get_renderer(model_info.get_recommended_renderer_name(model), get_tokenizer(model))
    rows = datasets.load_dataset("HuggingFaceH4/no_robots")["train"].shuffle(seed=0)
    for step in range(steps):
        batch = rows.select(range(step * batch_size, (step + 1) * batch_size))
        step_rows = []
        for row in batch:
            datum = conversation_to_datum(
                row["messages"], renderer, max_length, renderers.TrainOnWhat.ALL_ASSISTANT_MESSAGES
            )
            targets, weights = (list(datum.loss_fn_inputs[name].data) for name in ("target_tokens", "weights"))
            labels = [token if weight > 0 else IGNORED for token, weight in zip(targets, weights, strict=True)]
            step_rows.append({"input_ids": [*datum.model_input.to_ints(), targets[-1]], "labels": [IGNORED, *labels]})
        print(json.dumps(step_rows))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
