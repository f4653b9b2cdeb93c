"""What operators get without asking: alerts by Prefect's blocks, and what the watchdog checks for them."""
