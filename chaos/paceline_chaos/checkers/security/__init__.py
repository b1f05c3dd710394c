"""Judges users and rights: nobody does what he may not, or sees what is not his."""
