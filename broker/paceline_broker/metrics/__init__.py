"""Metrics by subject."""
