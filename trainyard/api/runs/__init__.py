"""The one place that speaks with Prefect's server: states in our words, what it holds for us, runs, and their control.

Prefect's database is the truth about runs, schedules and slots; this package only translates. Importing it imports
Prefect (seconds), so it is imported by flows and nodes, and by the command line only through `operations.load`.
"""

from trainyard.api.runs.control import crash_dead_runs, gpu_slot, wanted_by
from trainyard.api.runs.server import ZOMBIES, bootstrap, client, limit_name, zombie_automation
from trainyard.api.runs.states import NODE_STATES, STATES, node_state, run_state
from trainyard.api.runs.watching import continue_run, run_deployment, start_run, watch

__all__ = [
    "NODE_STATES",
    "STATES",
    "ZOMBIES",
    "bootstrap",
    "client",
    "continue_run",
    "crash_dead_runs",
    "gpu_slot",
    "limit_name",
    "node_state",
    "run_deployment",
    "run_state",
    "start_run",
    "wanted_by",
    "watch",
    "zombie_automation",
]
