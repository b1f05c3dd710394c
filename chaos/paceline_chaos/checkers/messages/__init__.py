"""Properties of messages: stored once, in order, seen when and by whom they should be."""
