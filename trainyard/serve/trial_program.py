"""The child that runs an adapter once on its base: reads spec.json, leaves trial.json with why that was not possible.

Started by `python -m trainyard.compute.launch trainyard.serve.trial_program:main FOLDER`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from trainyard.compute.child import SPEC_FILE, Events
from trainyard.serve.trial import TRIAL_FILE
from trainyard.stores.whole import write_json_durably
from trainyard.train.methods.reloading import try_adapter


def main(folder: Path, _events: Events) -> None:
    spec = json.loads((folder / SPEC_FILE).read_text(encoding="utf-8"))
    torch.set_num_threads(int(spec["threads"]))
    reason = try_adapter(Path(spec["adapter"]), spec["base"], spec["head"])
    write_json_durably(folder / TRIAL_FILE, {"reason": reason})
