"""Messages that are sent back: retries, dead letters, resends."""
