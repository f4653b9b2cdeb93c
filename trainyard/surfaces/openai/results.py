"""`result_files`: the metrics of each step of a completed job, as a file that `/files` lists and reads.

The file is made when the completed job is first shown, under an id that follows from the job's. As OpenAI's, its
content is the base64 of a CSV; a column that a stage does not measure is empty.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from contextlib import suppress

from trainyard.errors import Conflict
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.metrics import Point
from trainyard.stores.openai_records import ID_BYTES, FileRecord, FineTuningRecord
from trainyard.stores.whole import new_file
from trainyard.surfaces.openai.calls import WireCall
from trainyard.surfaces.openai.files import RESULTS_PURPOSE, path_of

COLUMNS = ("step", "train_loss", "train_accuracy", "valid_loss", "valid_mean_token_accuracy")


def keep_results(call: WireCall, record: FineTuningRecord, points: Sequence[Point], ended: float) -> FineTuningRecord:
    """Keep the metrics of a completed job as a file, once. Returns the record with the id of that file."""
    digest = hashlib.sha256(record.id.encode()).hexdigest()
    content = base64.b64encode(write_csv(points).encode())
    file = FileRecord(
        id=f"file-{digest[: 2 * ID_BYTES]}", created=ended, filename="step_metrics.csv", purpose=RESULTS_PURPOSE,
        bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), name=f"{record.id}.csv.b64", path="",
    )  # fmt: skip
    path = path_of(call, file)
    make_folders(DISK, path.parent)
    with translate_os_errors("The results were not kept"), new_file(path) as temporary:
        temporary.write_bytes(content)
    with suppress(Conflict):  # another request has kept the same
        call.files.create(file)
    return call.jobs.update(record, result_file=file.id)


def write_csv(points: Sequence[Point]) -> str:
    """Return the columns of OpenAI's result file, a line for each step."""
    rows = ((str(point.step), write_number(point.loss), "", write_number(point.eval_loss), "") for point in points)
    return "".join(",".join(row) + "\n" for row in (COLUMNS, *rows))


def write_number(value: float | None) -> str:
    return "" if value is None else f"{value:.5f}"
