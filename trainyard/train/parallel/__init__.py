"""Distributed training: one row a strategy in `STRATEGIES`, each a way to share a session's work and state.

    team.py      the processes, and how they talk
    ddp.py       everything in every process; which rows each computes, and how scores come together
    zero.py      optimizer states, and gradients, in parts (ZeRO 1 and 2)
    fsdp.py      weights in parts, too, once in each replica
    session.py   the eight verbs: called on rank 0, run by all ranks; the table of strategies

The training loop runs on rank 0 and knows nothing of this; the other ranks `serve`. Adding a strategy: a
class with the methods of `Ddp`, a row in `session.py`, a row in `spec/compat/engine.py`, and the tests that run
over the table.
"""
