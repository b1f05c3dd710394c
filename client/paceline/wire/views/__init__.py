"""How cluster views follow one another: what they share, what changed, and both as text."""
