"""The two endpoints for clients: HTTP and streams."""
