"""The acting master (R36): what it keeps while nobody can lead its group.

All of it is soft: no other replica hears of it, it expires, and nothing of it goes to the log.
"""
