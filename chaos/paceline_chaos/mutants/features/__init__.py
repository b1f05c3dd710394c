"""Rules of what clients use, taken out."""
