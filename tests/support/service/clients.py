"""What tests of clients share with others."""

PRODUCER = {
    "kind": "producer",
    "group": "shop",
    "client_id": "p1",
    "version": "0.1.0",
    "language": "PYTHON",
    "topics": ["orders"],
}


CONSUMER = {
    **PRODUCER,
    "kind": "consumer",
    "group": "audit",
    "client_id": "c1",
    "message_model": "clustering",
    "mode": "concurrent",
    "filters": {"orders": "a || b"},
}
