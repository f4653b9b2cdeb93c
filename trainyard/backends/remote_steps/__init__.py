"""Backends that train at a service step by step: our rows, loop, losses, evaluation and registry; their weights.

    program.py   the training child                session.py   our eight verbs over a service
    service.py   what a service does, a protocol   scoring.py   our losses over log-probabilities from elsewhere
    client.py    that protocol by the Tinker SDK   child.py     that protocol by another SDK, in its own interpreter
    backend.py   the parent's half                 addresses.py where a service is, and which key opens it
    tinker.py, remote.py, together_steps.py, fireworks_steps.py  one `BACKEND` each

Every loss that reads the log-probabilities of labels works: the service gives them, its gradient is computed here, and
goes back as weights of the service's cross-entropy.
"""
