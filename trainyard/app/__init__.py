"""What the operations do. Imports neither Prefect nor a surface."""
