"""The verbs of the product, light: requests, texts and rows. Imports pydantic, and no other heavy package."""
