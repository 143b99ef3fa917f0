"""What a device runs: a process that trains, and that may stay between orders."""
