"""Settings of the consumers."""
