"""Doubles of devices."""
