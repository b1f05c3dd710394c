"""The job "remoting": clients of RocketMQ's remoting protocol by bytes, and their gateways."""
