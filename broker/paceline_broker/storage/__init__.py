"""The store: everything that one broker has on disk, opened together."""
