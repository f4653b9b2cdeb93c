"""Programs that run or read what strangers wrote, each in a child that the operating system limits.

    limits     memory, processor time and system calls of a child, and the reason of its end
    children   the parent's side of a child: start, exchange of lines, end
    lines      the child's side: a loop that answers lines, each reply within its limits

Code that a model has written runs behind more walls. `service` is the side of the trusted process; the rest runs in the
sandbox and needs the standard library only: `zygote` (starts, confines itself and answers requests), `root` (namespaces
and their files), `kernel` (system calls, Landlock, limits), `workers` (the code under test and its assertions),
`remote` and `wire` (calls between those two).
"""
