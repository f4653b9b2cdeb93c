"""Code that runs in another tool's interpreter. This folder is put on the `PYTHONPATH` there as it is.

The package in it, `trainyard_worker`, needs the standard library and `orjson`; each engine also needs its own tool.
It imports nothing else of Trainyard, and only `compute` and `backends` import it.
"""
