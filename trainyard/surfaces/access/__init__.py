"""Access over a network: checks of requests, callers, limits, TLS. Imports neither Prefect nor torch."""
