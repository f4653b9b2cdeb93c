"""Trainyard: LLM fine-tuning as typed DAGs on Prefect."""

__version__ = "0.1.0"
