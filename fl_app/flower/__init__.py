"""Flower's messages and grids, in the vocabulary of this project."""
