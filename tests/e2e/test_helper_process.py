"""The helper as a process: TLS, kills, restarts, and a server that waits for it."""
