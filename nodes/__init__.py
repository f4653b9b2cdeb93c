"""The six words a chain author may use, each a Prefect task. What each takes and gives is told in docs/nodes.md."""
