"""Alerts of operators: alerts by Prefect's blocks, and what the watchdog checks for them."""
