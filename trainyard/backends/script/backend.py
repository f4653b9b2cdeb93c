"""The `script` backend, seen from the parent: a training script of your own, under the same contract. Imports no torch.

The script is `TRAINYARD_HOME/script_templates/NAME.py` where `launch.script` names one, else `standalone.py`, which
`trainyard eject` also writes. It runs as `python train.py spec.json` in a folder with its spec and rows;
docs/backends.md says what it may expect and has to leave. Off unless the operator sets `allow_scripts`: a chain is
data, a script is code.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import trainyard
from trainyard.backends import environments
from trainyard.backends.base import Probe
from trainyard.backends.job import TrainingJob
from trainyard.backends.programs import ExternalProgram
from trainyard.backends.script.templates import FOLDER, template_reasons
from trainyard.errors import Reason, TrainyardError
from trainyard.settings import Settings
from trainyard.settings import settings as current_settings
from trainyard.spec.axes.backends import BackendName


class ScriptProgram(ExternalProgram):
    """A script below a supervised child of Trainyard, in the interpreter that the operator names, or in Trainyard's."""

    def probe(self, settings: Settings | None = None) -> Probe:
        """Whether the operator allows scripts, and their interpreter is there."""
        current = settings or current_settings()
        if not current.allow_scripts:
            return Probe(
                False,
                why="Training scripts are switched off.",
                fix="Let the operator set `allow_scripts = true` in trainyard.toml.",
                code="R-SCRIPT-OFF",
            )
        if current.script_wrapper and shutil.which(current.script_wrapper[0]) is None:
            return Probe(
                False,
                why=f"There is no program {current.script_wrapper[0]!r}, with which scripts are run here.",
                fix="Let the operator install it, or correct `script_wrapper` in trainyard.toml.",
            )
        try:
            environments.find_python(BackendName.SCRIPT, current)
        except TrainyardError as error:
            return Probe(False, why=error.why, fix=error.do)
        return Probe(True, version=trainyard.__version__)

    def reasons(self, job: TrainingJob) -> list[Reason]:
        """A script of your own decides itself what it carries out; the built-in one has limits as other backends."""
        return super().reasons(job) if job.config.launch.script is None else template_reasons(job)

    def prepare(self, job: TrainingJob, folder: Path) -> None:
        """Write script, spec and rows; after the script was edited, its old checkpoints count no more."""
        from trainyard.backends.script.files import write  # only a run writes files

        write(job, folder / FOLDER, keep_work=True)


BACKEND = ScriptProgram(BackendName.SCRIPT)
