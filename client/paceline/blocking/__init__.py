"""Blocking twins of all clients, for scripts and threads."""
