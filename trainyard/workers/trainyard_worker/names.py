"""Names that the runner, the plan and the tools agree on. No imports: an external interpreter reads it, too."""

from __future__ import annotations

PLAN_FOLDER, MADE_FOLDER = "plan", "made"
PLAN_FILE, STEPS_FILE, RESUME_FILE = "plan.json", "steps.jsonl", "resume.json"
TOKENIZER_FOLDER, ADAPTER_FOLDER = "tokenizer", "adapter"
MODULES_FILE = "modules.json"
"""The adapted modules by the last part of their names, for tools that know no `all-linear`; null when continued."""
TEXTS_FILE = "texts.jsonl"
"""Rows of the preference stages, rendered, for tools that tokenise themselves."""
REPORT_FILE = "report.json"
FAILURE_FILE, HALT_FILE = "failure.json", "halt.json"
"""What a tool leaves in the work folder when it failed, or when it stopped at a step after saving."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
