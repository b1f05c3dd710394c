"""The Raft bed: three or five controllers' replicated logs, and nothing else of a controller.

What is real: `RaftQuorum` with core, journal, snapshots, identity and transport, on the simulated
network, disks and clocks; the sessions of the controllers' state machine. What is not: that
machine's groups and topics (a list that commands append to stands for them), HTTP, brokers. So a
seed costs a fraction of a world, and its faults hit nothing but Raft: deaths at each operation of a
disk and inside each step, silent and one-way cuts, bridges, power cuts of one and of all, disks
that are slow, full, failing, damaged or lost, clocks that run wrong, leaders that hand over, and
members that come, go and replace one another meanwhile (`operator`).

Reading order: `plan` (what a seed draws), `machine`, `node`, `clients`, `inject` (faults), `judge`
(what must hold at each step and in the end), `run`.
"""
