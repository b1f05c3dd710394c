"""One queue as its consumer sees it: its segments, and the messages between fetch and commit."""
