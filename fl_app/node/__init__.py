"""What a device runs: orders carried out in a process that may stay."""
