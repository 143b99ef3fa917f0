"""Real nodes: kits, supervision and checks of a federation of processes and devices."""
