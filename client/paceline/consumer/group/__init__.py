"""Membership in a consumer group, and which queues each member gets."""
