"""Table of the refused combinations, and what to write instead.

This is the only place that speaks of two axes together, with the data that it reads: what each backend and target
supports (`spec/axes`).

A row is `(name, code, node type, field, when, because, instead)`; the rows of one subject share a code. `when` looks at
one node in its place in the chain and says yes or no, or gives the words that the two texts need; the texts are filled
with `{config…}` and those words. Every command prints the same row. Rows of scope `run` also need to know the machine
and the operator's settings (`RunFacts`); a chain that they refuse is still a valid chain elsewhere.

To add a row: write it in the file of its node type, with a name of its own and the code of its subject, add
`tests/resources/chains_bad/<name>.yaml` and run `make reference`.
"""
