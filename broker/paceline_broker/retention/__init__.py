"""Which segments a master deletes, and when a queue is sealed."""
