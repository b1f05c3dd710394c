"""The door for clients of RocketMQ's remoting protocol (4.x and 5.x): name server and brokers."""
