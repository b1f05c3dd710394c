"""Scripts about consumer groups, topics and queries."""
