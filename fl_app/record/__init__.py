"""The record of a run: files and console, and the history of its events."""
