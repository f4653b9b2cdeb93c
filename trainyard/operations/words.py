"""The first words of operations: the group of the help that each is in, what it is about in a line, and its guide."""

from __future__ import annotations

from typing import NamedTuple

TRAIN, LOOK, DATA = "Train", "Look", "Data"
SERVE, NIGHTS, MACHINE = "Adapters and serving", "Nights and sweeps", "Machine and server"


class Word(NamedTuple):
    group: str
    line: str
    """One line of the help: with the word before it, it fits 80 columns."""
    guide: str
    """The page of the manual, docs/GUIDE.md."""


WORDS: dict[str, Word] = {
    "run": Word(TRAIN, "Start a template or a chain, or continue a run by its id.", "running"),
    "jobs": Word(TRAIN, "Trainings: start, watch, pause, resume and cancel them.", "jobs"),
    "check": Word(TRAIN, "Say whether chain files would run, and each reason against.", "chains"),
    "plan": Word(TRAIN, "Show what a run would do: order, sizes, memory, times.", "running"),
    "templates": Word(TRAIN, "The templates, or the parameters of one.", "running"),
    "schema": Word(TRAIN, "The settings of a node, template, job, night or the machine.", "nodes"),
    "chains": Word(TRAIN, "Chains that are stored here, as revisions that never change.", "chains"),
    "sessions": Word(TRAIN, "Step sessions: a model on a device, driven by eight verbs.", "sessions"),
    "diloco": Word(TRAIN, "What islands behind slow links would send, before a job runs.", "distributed"),
    "import": Word(TRAIN, "Turn a config of Axolotl, LLaMA-Factory, TRL, … into a chain.", "import"),
    "export": Word(TRAIN, "Write a trainer of a chain as a config of another tool.", "import"),
    "eject": Word(TRAIN, "Write a training as a script and its rows, to run by hand.", "jobs"),
    "demo": Word(TRAIN, "Documents in, a served adapter out, in some minutes.", "getting-started"),
    "compare": Word(LOOK, "Trainings next to each other: settings, metrics, answers.", "monitoring"),
    "evaluations": Word(LOOK, "Reports of evaluators: is an adapter better?", "evaluation"),
    "artifacts": Word(LOOK, "What nodes of runs left: sets of rows, adapters, reports.", "monitoring"),
    "gpus": Word(LOOK, "Devices of this machine, memory of each job; GPUs to rent.", "monitoring"),
    "dashboard": Word(LOOK, "A link that opens the dashboard and logs a browser in.", "dashboard"),
    "data": Word(DATA, "Data sets, before anything is trained on them.", "data-sources"),
    "models": Word(DATA, "The base models on this machine.", "models"),
    "renderers": Word(DATA, "How conversations become tokens.", "renderers"),
    "graph": Word(DATA, "The knowledge graph that nights write.", "graph"),
    "corpus": Word(DATA, "What people did, as tuples that nights train on.", "nightly"),
    "adapters": Word(SERVE, "The registry of deployed adapter versions.", "adapters"),
    "chat": Word(SERVE, "Talk to an adapter and its base side by side.", "serving"),
    "serve": Word(SERVE, "Answer over HTTP: the REST API, models, the graph of nights.", "serving"),
    "mcp": Word(SERVE, "Answer an agent over the Model Context Protocol.", "mcp"),
    "nightly": Word(NIGHTS, "The night: documents into the graph, work into adapters.", "nightly"),
    "sweep": Word(NIGHTS, "Train a chain with many sets of values; the best continue.", "sweeps"),
    "up": Word(MACHINE, "Start the server, worker and model server of this home.", "getting-started"),
    "down": Word(MACHINE, "End what `up` started, so that runs can save.", "getting-started"),
    "doctor": Word(MACHINE, "Check this machine, and suggest fixes.", "troubleshooting"),
    "settings": Word(MACHINE, "The settings of this machine, and where each comes from.", "reference/settings"),
    "env": Word(MACHINE, "The variables that make `prefect` commands talk to this stack.", "prefect"),
    "backends": Word(MACHINE, "The trainers: which there are, and what each is missing.", "backends"),
    "scripts": Word(MACHINE, "Training scripts of your own, for the backend script.", "backends"),
    "limits": Word(MACHINE, "What the tier of a tenant allows, by a signed policy.", "access"),
    "tokens": Word(MACHINE, "Tokens of the API: who may ask over a network, and for what.", "access"),
    "ledger": Word(LOOK, "Who trained what, on which data, at what price.", "ledger"),
    "report": Word(LOOK, "One page about a run: data, tokens, proof, and its cost.", "ledger"),
    "reproduce": Word(LOOK, "Carry out a recorded training again, and compare.", "ledger"),
    "lineage": Word(LOOK, "What an adapter was made from, and what became of it.", "ledger"),
    "audit": Word(MACHINE, "The log of everything that changed something.", "access"),
    "gc": Word(MACHINE, "Remove unused runs, results and logs.", "housekeeping"),
    "backup": Word(MACHINE, "Write a home with its database into one file.", "housekeeping"),
    "restore": Word(MACHINE, "Make the home of a backup again, whole or not at all.", "housekeeping"),
    "migrate": Word(MACHINE, "Bring files of an earlier version into the form of this one.", "cli"),
    "starter": Word(MACHINE, "The small model that everything runs with by default.", "models"),
    "prove-resume": Word(MACHINE, "Show that a stopped training ends in the same bits.", "native-engine"),
}
"""In the order of the help."""


def words_by_group() -> dict[str, dict[str, str]]:
    """Return group -> word -> its line, in the order of the help."""
    groups: dict[str, dict[str, str]] = {}
    for word, entry in WORDS.items():
        groups.setdefault(entry.group, {})[word] = entry.line
    return groups
