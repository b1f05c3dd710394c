"""The job "grpc": clients of RocketMQ's gRPC protocol, and their gateways; needs protobuf."""
