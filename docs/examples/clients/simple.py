"""Send 3 messages and receive them, with RocketMQ's own client for Python (gRPC).

paceline topic create TOPIC  # first: this client does not make the topic
pip install rocketmq-python-client==5.1.2
python simple.py HOST:PORT TOPIC GROUP

PACELINE_ACCESS_KEY and PACELINE_SECRET_KEY: a key that signs, while rights are on.
PACELINE_TLS_CA: the authority of the cluster, for a gateway with TLS.
"""

import os
import sys

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

if len(sys.argv) != 4:
    sys.exit("usage: python simple.py HOST:PORT TOPIC GROUP")
endpoint, topic, group = sys.argv[1:]
key = Credentials(
    os.environ.get("PACELINE_ACCESS_KEY", ""), os.environ.get("PACELINE_SECRET_KEY", "")
)
configuration = ClientConfiguration(endpoint, key)
tls_ca = os.environ.get("PACELINE_TLS_CA")
if tls_ca:  # gRPC reads this variable at the first connection; the client has no setting for it
    os.environ["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = tls_ca

producer = Producer(configuration, (topic,), tls_enable=bool(tls_ca))
producer.startup()
for number in range(3):
    message = Message()
    message.topic = topic
    message.body = f"hello {number}".encode()
    print("sent", producer.send(message).message_id)
producer.shutdown()

consumer = SimpleConsumer(
    configuration, group, {topic: FilterExpression()}, tls_enable=bool(tls_ca)
)
consumer.startup()
received = 0
while received < 3:
    for message in consumer.receive(16, 30):  # at most 16, invisible to others for 30 s
        print("received", message.body.decode())
        consumer.ack(message)
        received += 1
consumer.shutdown()
