"""Implementation of the operations. Imports neither Prefect nor a surface."""
