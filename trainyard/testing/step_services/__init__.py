"""Step services in this process, one file for each wire: they check every field, compute for real, and can fail.

    wire.py       strict bodies, keys, faults, files
    compute.py    adapters computed at Trainyard's step service
    together.py   `/v1/rl/...` of together 3.1.1
    fireworks.py  `/training/v1/serverless/...` of fireworks-ai 1.2.30

The fields are those of each SDK's own types; `tests/unit/testing/test_step_wires.py` compares them where an SDK is
installed. None of these services was ever asked itself.
"""
