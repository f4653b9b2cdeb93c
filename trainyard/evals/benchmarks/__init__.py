"""The benchmarks: one table from a name to a function `score(model, cases) -> one value per case`.

To add one: write `evals/benchmarks/<name>.py` with such a function, add a row in `table.py`, add a test. A row says
what the value is, which direction is good, from which rows it can be computed, and how much worse a candidate may be
when the evaluator's config lists no benchmarks of its own.
"""
