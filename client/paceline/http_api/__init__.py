"""How brokers and controllers serve the requests of `paceline.wire` over HTTP."""
