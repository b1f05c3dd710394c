"""What goes wrong: processes, machines, disks, connections, partitions. One method is one fault.

Kinds and targets are those of `faults.plan`, so histories of all beds read alike.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from paceline.platform.disk_memory import MemoryDisk
from paceline.types import Incarnation, PhysicalOffset
from paceline_broker.replication.frames import FRAME_HEADER_BYTES
from paceline_chaos.protocol_sim.network import Message
from paceline_chaos.protocol_sim.node import Node
from paceline_chaos.protocol_sim.scene import Scene, is_master
from paceline_chaos.protocol_sim.shape import losses_max


class Faults(Scene):
    """Faults by name, as `world.TROUBLE` draws them."""

    def __init__(self, seed: int, *, changes: Mapping[str, Any] | None = None) -> None:
        super().__init__(seed, changes=changes)
        self._steps_clocks = self.dice.happens(0.3)
        most = losses_max(self.settings)
        self._losses_left = 1 + self.dice.below(most) if most else 0
        """Copies that may be lost in this run: disks, backups, or power with memory durability."""
        self._backup: tuple[Node, Incarnation, MemoryDisk, int] | None = None

    def _some(self) -> Node:
        """A node, the master more often: that is where it hurts."""
        return self.dice.one_of([*self.nodes, *filter(is_master, self.nodes)])

    def _lasting_us(self, low_ms: int, high_ms: int) -> int:
        return (low_ms + self.dice.below(high_ms - low_ms)) * 1000

    def _break(self) -> None:
        """A connection between brokers, or of a client, is reset."""
        if self.doors and self.dice.happens(0.4):
            door = self.dice.one_of(self.doors)
            self.coverage.saw("resets_network")
            self.fault("reset", door.client.name)
            door.break_off(self.dice)
        elif self.connections:
            connection = self.dice.one_of(self.connections)
            self.coverage.saw("resets_network")
            self.fault("reset", connection.replica.node.name)
            connection.break_off(self.dice)

    def _lose(self) -> None:
        """Something under way to or from the controllers is lost."""
        for queue in (self.controllers.requests, self.controllers.answers):
            if queue and self.dice.happens(0.5):
                del queue[self.dice.below(len(queue))]

    def _kill(self) -> None:
        node = self._some()
        if node.is_up:
            self.fault("kill", node.name)
            self._kill_process(node)

    def _power(self) -> None:
        node = self._some()
        if self._may_lose_power():
            self.fault("power", node.name)
            self._lose_power(node)
            if self.settings.durability == "memory":
                self._behead(node)

    def _behead(self, newcomer: Node) -> None:
        """A copy has lost something: mostly now somebody has to be elected, and maybe it."""
        if self.dice.happens(0.7):
            self.controllers.favour(newcomer.claimed)
            for node in filter(is_master, self.nodes):
                self.fault("kill", node.name)
                self._kill_process(node)

    def _pause(self) -> None:
        """A process is stopped and goes on later as if nothing had happened (SIGSTOP)."""
        node = self._some()
        if self.acts(node):
            lasting_us = self._lasting_us(100, 4000)
            node.paused_until_us = self.clock.now_us + lasting_us
            self.coverage.saw("pauses")
            self.fault("pause", node.name, detail=f"for {lasting_us // 1000} ms")

    def _deafen(self) -> None:
        """A broker hears nothing from the controllers for a while; they may hear it."""
        node = self.dice.one_of(self.nodes)
        if node.is_up and not self._is_deaf(node):
            lasting_us = self._lasting_us(200, 4000)
            node.deaf_until_us = self.clock.now_us + lasting_us
            self.coverage.saw("one_way_cuts")
            self.fault("cut", f"c1>{node.name}", detail=f"for {lasting_us // 1000} ms")

    def _partition(self) -> None:
        """Some nodes are cut off from the others, the controllers and the clients."""
        if self._cut_until_us > self.clock.now_us:
            return
        cut = [node for node in self.nodes if self.dice.happens(0.5)]
        if not cut:
            return
        lasting_us = self._lasting_us(200, 5000)
        self._cut = {node.name for node in cut}
        clients = sorted({door.client.name for door in self.doors})
        self._cut_clients = {name for name in clients if self.dice.happens(0.3)}
        self._cut_until_us = self.clock.now_us + lasting_us
        for node in cut:
            node.deaf_until_us = max(node.deaf_until_us, self._cut_until_us)
        is_breaking = self.dice.happens(0.5)  # else what is under way waits for the end of it
        for connection in self.connections:
            if is_breaking and self._are_parted(connection.replica.node, connection.master.node):
                connection.break_off(self.dice)
        self.coverage.saw("partitions")
        names = ",".join(sorted(self._cut))
        self.fault("split", names, detail=f"for {lasting_us // 1000} ms")

    def _blackout(self) -> None:
        """All machines lose power at once."""
        if self.settings.durability == "fsync":
            self.fault("power", "all")
            for node in self.nodes:
                self._lose_power(node)

    def _may_lose_power(self) -> bool:
        """With memory durability a power loss is the loss of a copy (R13)."""
        if self.settings.durability == "fsync":
            return True
        self._losses_left -= 1
        return self._losses_left >= 0

    def _fuse(self) -> None:
        """Power will fail at one of the next operations of a disk."""
        node = self._some()
        if node.is_up and node.disk.fuse is None and self.settings.durability == "fsync":
            node.disk.fuse = self.dice.below(12)

    def _disk_error(self) -> None:
        """A call of the disk fails: the process is out until its restart (R22)."""
        node = self._some()
        if node.is_up and self.settings.durability == "fsync":
            call = self.dice.one_of(["sync_now", "sync_now", "writev"])
            self.fault("disk_fail", node.name, detail=call)
            node.disk.fail_next(call)

    def _clock(self) -> None:
        """A wall clock jumps: log time goes on, and positions are ordered by nothing else (R29)."""
        if not self._steps_clocks:
            return  # leases of locks promise times only without this (S26)
        node = self.dice.one_of(self.nodes)
        node.clock.offset_ms = self.dice.below(20_000) - 10_000
        self.coverage.saw("clock_steps")
        self.fault("clock_step", node.name, detail=f"to {node.clock.offset_ms} ms")

    def _boot(self) -> None:
        node = self.dice.one_of(self.nodes)
        if node.wants_restart:
            self._kill_process(node)
        if not node.is_up:
            self.aim(node)
            self.guarded(node, node.boot)

    def _replace(self) -> None:
        """A disk is lost, or an old copy of one is restored, as often as the group survives it.

        A copy is old enough when a later start of the node has registered: then R9 finds it out. A
        younger one only the confirm floor can, when it has caught up with confirm (R16).
        For the same reason its first registration arrives: a copy that starts again and again
        unheard counts its incarnation past the recorded one.
        """
        node = self.dice.one_of(self.nodes)
        if self._losses_left < 1 or not node.is_up or node.replica_id is None:
            return
        if self._cut_until_us > self.clock.now_us:
            return
        if self._backup is None and self.dice.happens(0.7):
            image = node.disk.crash_image(self.dice.random, keep_page_cache=False, survival=0.0)
            self._backup = (node, node.incarnation, image, node.log.end)
            return
        disk = MemoryDisk()
        if self._backup is not None:
            node, incarnation, disk, end = self._backup
            if not self._is_found_out(node, incarnation, end):
                return
            self._backup = None
            self.coverage.saw("stale_copies")
            self.fault("disk_stale", node.name)
        else:
            if self.dice.happens(0.5):
                node.claimed = None
            self.coverage.saw("disks_lost")
            self.fault("disk_lost", node.name)
        self._losses_left -= 1
        self._behead(node)
        if node.is_up:
            self._stop(node)
        # One of its former processes that came now would look like one of the new disk (S30).
        self.controllers.forget_registrations(node.name, share=1.0)
        node.boots_count += 1
        node.disk = disk
        self.judge.store_replaced(node.name)
        self.guarded(node, node.boot)
        self.controllers.deliver_registration(node.name, node.generation)

    def _corrupt(self) -> None:
        """A byte of a replication frame changes on its way: TCP's checksum lets some through."""
        inboxes = [
            connection.replica.inbox
            for connection in self.connections
            if any(is_frame_with_body(message) for message in connection.replica.inbox)
        ]
        if not inboxes:
            return
        inbox = self.dice.one_of(inboxes)
        index = next(at for at, message in enumerate(inbox) if is_frame_with_body(message))
        frame = bytearray(inbox[index])  # type: ignore[arg-type]
        frame[FRAME_HEADER_BYTES + self.dice.below(len(frame) - FRAME_HEADER_BYTES)] ^= 0x20
        inbox[index] = bytes(frame)
        self.coverage.saw("frames_corrupted")
        self.fault("reset", "brokers", detail="a frame was damaged")

    def _flip(self) -> None:
        """A bit of the last durable batch changes, which looks like a tear (R23): a copy less."""
        node = self.dice.one_of(self.nodes)
        if self._losses_left < 1 or not node.is_up or self.settings.durability != "fsync":
            return
        mark, flushed = node.log.checkpointed.flushed, node.log.flushed
        if node.log.failure is not None or mark >= flushed or node.replica_id is None:
            return
        position = max(h.physical_offset for h, _ in node.log.batches(mark, flushed))
        segment = node.log._segments.locate(PhysicalOffset(position))
        path = segment.file.path
        self._losses_left -= 1
        self.coverage.saw("tails_flipped")
        self.fault("disk_flip", node.name, detail=f"in the batch at {position}")
        self._kill_process(node)
        self._behead(node)
        node.disk.flip_bit(path, position - segment.first + 100)
        self._boot_heard(node)
        if self.dice.happens(0.5) and node.is_up:  # a second start must not wash it off
            self._kill_process(node)
            self._boot_heard(node)

    def _boot_heard(self, node: Node) -> None:
        """A start whose registration arrives at once, its answer and the present view too. The one
        before it may have ended in the middle of its recovery."""
        self.aim(node)
        self.guarded(node, node.boot)
        if not node.is_up:
            self.guarded(node, node.boot)
        self.controllers.deliver_registration(node.name, node.generation)
        answers = [answer for answer in self.controllers.answers if answer.node == node.name]
        for answer in answers:
            self.controllers.answers.remove(answer)
            if node.is_up and node.generation == answer.generation:
                self.guarded(node, partial(node.answered, answer))
        if node.is_up:
            self.guarded(node, lambda: node.view_arrived(self.controllers.view))

    def _is_found_out(self, node: Node, incarnation: Incarnation, end: int) -> bool:
        """Whether the controllers cannot take the copy for the store that it was.

        A young copy that ends above the floor, with records that never were confirmed, they can.
        """
        group = self.controllers.group
        if self._registered_incarnation(node) > incarnation:
            return True
        return group is not None and end < group.confirm_floor >= len(self.judge.truth)

    def _registered_incarnation(self, node: Node) -> Incarnation:
        group = self.controllers.group
        if group is None or node.claimed is None:
            return Incarnation(0)
        return group.replicas[node.claimed].incarnation


def is_frame_with_body(message: Message) -> bool:
    """Whether it carries batches."""
    return isinstance(message, bytes) and len(message) > FRAME_HEADER_BYTES
