"""RocketMQ's gRPC protocol as protobuf messages: the .proto files, and what `make stubs` makes."""
