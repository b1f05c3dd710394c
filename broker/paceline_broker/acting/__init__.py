"""What a replica does while it acts as master of a group that nobody can lead (R36).

All of it is soft: no other replica hears of it, it expires, and nothing of it goes to the log.
"""
