"""The manual, and the package that generates its reference pages."""
