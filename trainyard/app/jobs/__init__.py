"""Jobs: control, logs, nodes, checkpoints, samples, and what they are compared by."""
