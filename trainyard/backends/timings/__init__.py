"""Durations of trainings on this machine: measured by a probe or by a run, kept under the home, used by every plan."""
