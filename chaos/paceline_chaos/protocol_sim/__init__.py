"""The core bed: one broker group and its controllers as state machines on virtual disks.

What is real: commit log, recovery, epochs, replication on both sides, mastership and its term,
acknowledgement, projections and their checkpoints, the service (sends, fetches, commits, locks),
the controllers' state machine and the choice of masters, the producer's outboxes. What is not: the
event loop, sockets and HTTP, Raft, threads. Messages are objects in queues, a turn of the loop is a
function call, and time passes only by the steps of a random walk. That is some hundred times
cheaper than a world of whole processes, so the mass of seeds is run here.

Reading order: `world` (the walk), `scene` (who reaches whom), `node` with `process`, `leading` (a
broker), `controllers`, `clients`, `faults`, `judge` (what is checked at each step), `run` (a seed
from beginning to end).
"""
