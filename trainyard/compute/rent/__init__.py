"""Rented GPUs: offers, one machine for one request, limits of time and money, and the release of every machine.

catalog.py   offers of many providers, from gpuhunt's catalog      prime.py     offers and pods of Prime Intellect
rentals.py   the record of a rental, written before it is paid     renting.py   rent, watch, release, reap
joining.py   a machine becomes a Prefect worker, over SSH          wire.py      base class of the services
skypilot.py, dstack.py   second engines, whose own servers rent
"""
