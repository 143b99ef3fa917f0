"""Tasks: data, model, loss and metric, and which client holds which examples.

Nothing is imported here, because partitions are checked before torch is imported.
"""
