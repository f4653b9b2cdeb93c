"""Readers: bytes of a place (files, addresses, repositories) to records or documents, with every cap in one place."""
