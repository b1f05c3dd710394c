"""A real node on a disk and a clock that fail."""
