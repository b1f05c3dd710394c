"""Delayed messages: taken in, kept, put into their queue when they are due."""
