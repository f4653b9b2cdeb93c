"""The six node types of a chain, each a Prefect task. docs/nodes.md describes the inputs and outputs of each."""
