"""Reads of queues: single fetches, fetch sessions, filters."""
