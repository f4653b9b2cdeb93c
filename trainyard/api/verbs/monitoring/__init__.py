"""What the machine does now."""
