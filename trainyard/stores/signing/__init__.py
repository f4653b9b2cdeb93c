"""Signatures over adapter versions and policy files: the keys of a home, the keys that it trusts, and the bundles."""
