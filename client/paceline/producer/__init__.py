"""Producers: the API, one buffer for each queue, and one sender for each broker."""
