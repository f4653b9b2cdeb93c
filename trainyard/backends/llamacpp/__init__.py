"""The `llamacpp` backend: `backend.py` is the parent's half, `program.py` the supervised child."""
