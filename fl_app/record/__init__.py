"""What is kept of a run: its events in files and on the console, and what they add up to."""
