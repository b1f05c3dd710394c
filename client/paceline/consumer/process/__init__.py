"""Queues that a member holds, and what becomes of their messages."""
