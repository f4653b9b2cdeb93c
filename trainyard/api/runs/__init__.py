"""The one place that speaks with Prefect's server: states in our words, what it holds for us, runs, and their control.

Prefect's database is the truth about runs, schedules and slots; this package only translates. Importing it imports
Prefect (seconds), so it is imported by flows and nodes, and by the command line only through
`stack.import_prefect_client`.
"""

from trainyard.api.runs.control import INTERRUPTED, WANTED_EVERY_S, state_now, wanted_by
from trainyard.api.runs.listing import find_job, list_jobs, read_log
from trainyard.api.runs.operating import cancel_run, crash_dead_runs, dead_runs, pause_run, resume_run, settle
from trainyard.api.runs.server import ZOMBIES, bootstrap, client, limit_name, zombie_automation
from trainyard.api.runs.slots import device_slots, free_unheld_slots
from trainyard.api.runs.states import (
    BUDGET_EXCEEDED,
    NO_TRAINER,
    NODE_STATES,
    PREEMPTED,
    STATES,
    STOPPED_NAMES,
    node_state,
    preempted,
    run_state,
    waits_for_trainer,
    without_trainer,
)
from trainyard.api.runs.watching import continue_run, run_deployment, start_run, watch

__all__ = [
    "BUDGET_EXCEEDED",
    "INTERRUPTED",
    "NODE_STATES",
    "NO_TRAINER",
    "PREEMPTED",
    "STATES",
    "STOPPED_NAMES",
    "WANTED_EVERY_S",
    "ZOMBIES",
    "bootstrap",
    "cancel_run",
    "client",
    "continue_run",
    "crash_dead_runs",
    "dead_runs",
    "device_slots",
    "find_job",
    "free_unheld_slots",
    "limit_name",
    "list_jobs",
    "node_state",
    "pause_run",
    "preempted",
    "read_log",
    "resume_run",
    "run_deployment",
    "run_state",
    "settle",
    "start_run",
    "state_now",
    "waits_for_trainer",
    "wanted_by",
    "watch",
    "without_trainer",
    "zombie_automation",
]
