"""One run, or the cells of an experiment, from configuration to files."""
