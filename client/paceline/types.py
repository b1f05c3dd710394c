"""Ids and offsets that must not be mixed: int or str at run time, each its own type to mypy.

A physical offset counts bytes of a group's commit log, a queue offset counts records of one queue.
Mixing them is the classic bug of log systems, so it is a type error here.
"""

from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""Bytes from the start of the commit log; ranges are half-open."""

QueueOffset = NewType("QueueOffset", int)
"""Records from the start of one queue (topic, broker group, queue id)."""

MasterEpoch = NewType("MasterEpoch", int)
"""Number of a mastership of one broker group; 0 = never had a master. Fits u32."""

SetEpoch = NewType("SetEpoch", int)
"""Version of a group's sync state set; every committed change adds one."""

ReplicaId = NewType("ReplicaId", int)
"""Id of a replica inside its broker group, given by the controller, from 1, never reused."""

Incarnation = NewType("Incarnation", int)
"""One start of a replica process: a counter fsynced in its data folder before it registers (R9)."""

ControllerId = NewType("ControllerId", str)
"""Name of one controller of the quorum, e.g. "c1"; fixed by configuration."""

TopicId = NewType("TopicId", int)
"""Id of a topic, given by the controller, never reused. Fits u32; 0 = no topic (internal)."""

QueueId = NewType("QueueId", int)
"""Index of a queue inside (topic, broker group), from 0. Fits u16."""

ProducerId = NewType("ProducerId", int)
"""64 random bits, or the first 8 bytes of SHA-256 of a given name; 0 = not idempotent."""

ProducerEpoch = NewType("ProducerEpoch", int)
"""Raised by the client after it reported an unknown outcome (R32). Fits u16."""

Sequence = NewType("Sequence", int)
"""Number of a record of one producer in one queue, from 0, dense. Fits i32; -1 = none."""

GroupName = NewType("GroupName", str)
"""Name of a broker group (RocketMQ's brokerName)."""

TopicName = NewType("TopicName", str)

ConsumerGroupName = NewType("ConsumerGroupName", str)
