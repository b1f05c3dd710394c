"""Pure: the calls between clients and brokers, each a request type and the type of its answer."""
