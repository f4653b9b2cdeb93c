"""Adapter versions: registered, promoted, merged, published and asked."""
