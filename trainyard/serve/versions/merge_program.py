"""The merging child: reads spec.json, writes the model where it says, and merged.json with what was measured.

Started by `python -m trainyard.compute.launch trainyard.serve.versions.merge_program:main FOLDER`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from trainyard.compute.child import SPEC_FILE, Events
from trainyard.serve.conversion.merged import MERGED_FILE
from trainyard.stores.whole import write_json_durably
from trainyard.train.methods.composition import merge


def main(folder: Path, _events: Events) -> None:
    spec = json.loads((folder / SPEC_FILE).read_text(encoding="utf-8"))
    torch.set_num_threads(int(spec["threads"]))
    record = merge(spec["base"], Path(spec["adapter"]), Path(spec["out"]), spec["dtype"])
    write_json_durably(folder / MERGED_FILE, record)
