"""Properties of consumer groups, their locks, filters and hooks."""
