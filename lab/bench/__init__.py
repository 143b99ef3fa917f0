"""How fast one machine simulates: our engine against a bare torch loop, and its memory."""
