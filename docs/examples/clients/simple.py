"""Send 3 messages and receive them, with RocketMQ's own client for Python.

pip install rocketmq-python-client==5.1.2; python simple.py HOST:PORT TOPIC GROUP
"""

import sys

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

endpoint, topic, group = sys.argv[1:]
# With rights on: the id and the secret of an access key, and tls_enable=True below.
configuration = ClientConfiguration(endpoint, Credentials())

producer = Producer(configuration, (topic,))
producer.startup()
for number in range(3):
    message = Message()
    message.topic = topic
    message.body = f"hello {number}".encode()
    print("sent", producer.send(message).message_id)
producer.shutdown()

consumer = SimpleConsumer(configuration, group, {topic: FilterExpression()})
consumer.startup()
received = 0
while received < 3:
    for message in consumer.receive(16, 30):  # at most 16, invisible to others for 30 s
        print("received", message.body.decode())
        consumer.ack(message)
        received += 1
consumer.shutdown()
