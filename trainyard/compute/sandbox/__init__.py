"""Run Python code that a model has written where the operating system confines it.

`service` is the side of the trusted process; everything else runs in the sandbox and needs the standard library only:
`zygote` (starts, confines itself and answers requests), `root` (namespaces and their files), `kernel` (system calls,
Landlock, limits), `workers` (the code under test and its assertions), `remote` and `wire` (calls between those two).
"""
