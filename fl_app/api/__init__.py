"""Runs and comparisons from Python, also in a notebook."""
