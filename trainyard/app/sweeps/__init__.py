"""Sweeps: started, shown and stopped."""
