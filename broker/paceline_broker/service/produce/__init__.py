"""Sends: checked, appended, answered; topics that are created by the first one."""
