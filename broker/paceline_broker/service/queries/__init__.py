"""Messages found by key, id and time."""
