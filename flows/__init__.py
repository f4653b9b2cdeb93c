"""Order: what runs after what. Every flow is a form and one call of the walker."""
