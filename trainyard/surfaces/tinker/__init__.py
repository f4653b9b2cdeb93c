"""The wire of the Tinker SDK over step sessions: its routes, bodies, futures and checkpoints."""
