"""Thousands of nights in minutes: the product's own functions on a simulated clock, disk, object store and device."""
