"""Tasks: what is learned, from which data, split over which clients.

Nothing is imported here: partitions are checked before torch is there.
"""
