"""Whom to elect and when, from what was heard. Pure."""
