"""Scenarios for real processes: their files, their faults, what is expected."""
