"""Training in worker processes on the machines of a Ray cluster: ``runtime=ray``."""
