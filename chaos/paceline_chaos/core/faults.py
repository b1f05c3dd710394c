"""What goes wrong: processes, machines, disks, connections, partitions. One method is one fault."""

from paceline.disk_memory import MemoryDisk
from paceline.types import Incarnation
from paceline_chaos.core.node import Node
from paceline_chaos.core.scene import Scene, is_master


class Faults(Scene):
    """Faults by name, as `world.WEIGHTS` draws them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._losses_left = 1  # disks, backups, or power with memory durability: one copy in all
        self._backup: tuple[Node, Incarnation, MemoryDisk] | None = None

    def _break(self) -> None:
        if self.connections:
            self.dice.one_of(self.connections).break_off(self.dice)

    def _lose(self) -> None:
        """Something under way to or from the controllers is lost."""
        for queue in (self.controllers.requests, self.controllers.answers):
            if queue and self.dice.happens(0.5):
                del queue[self.dice.below(len(queue))]

    def _kill(self) -> None:
        node = self.dice.one_of(self.nodes)
        if node.is_up:
            self._kill_process(node)

    def _power(self) -> None:
        node = self.dice.one_of([*self.nodes, *filter(is_master, self.nodes)])
        if self._may_lose_power():
            self._lose_power(node)

    def _pause(self) -> None:
        """A process is stopped and goes on later as if nothing had happened (SIGSTOP)."""
        node = self.dice.one_of([*self.nodes, *filter(is_master, self.nodes)])
        if self._acts(node):
            node.paused_until = self.steps_count + 50 + self.dice.below(400)
            self.note(f"{node.name} is paused until {node.paused_until}")

    def _deafen(self) -> None:
        """A broker hears nothing from the controllers for a while; they may hear it."""
        node = self.dice.one_of(self.nodes)
        if node.is_up and not self._is_deaf(node):
            node.deaf_until = self.steps_count + 50 + self.dice.below(300)
            self.note(f"{node.name} hears no controller until {node.deaf_until}")

    def _partition(self) -> None:
        """Some nodes are cut off from the others and from the controllers."""
        if self._cut_until > self.steps_count:
            return
        cut = [node for node in self.nodes if self.dice.happens(0.5)]
        self._cut = {node.name for node in cut}
        self._cut_until = self.steps_count + 50 + self.dice.below(300)
        for node in cut:
            node.deaf_until = max(node.deaf_until, self._cut_until)
        for connection in self.connections:
            if self._are_parted(connection.replica.node, connection.master.node):
                connection.break_off(self.dice)
        names = " ".join(sorted(self._cut)) or "nobody"
        self.note(f"{names} cut off until {self._cut_until}")

    def _blackout(self) -> None:
        """All machines lose power at once."""
        if self.settings.durability == "fsync":
            for node in self.nodes:
                self._lose_power(node)

    def _may_lose_power(self) -> bool:
        """With memory durability a power loss is the loss of a copy: only one is survived (R13)."""
        if self.settings.durability == "fsync":
            return True
        self._losses_left -= 1
        return self._losses_left >= 0

    def _fuse(self) -> None:
        """Power will fail at one of the next operations of a disk."""
        node = self.dice.one_of(self.nodes)
        if node.is_up and node.disk.fuse is None and self.settings.durability == "fsync":
            node.disk.fuse = self.dice.below(12)

    def _disk_error(self) -> None:
        """A call of the disk fails: the process is out until its restart (R22)."""
        node = self.dice.one_of(self.nodes)
        if node.is_up and self.settings.durability == "fsync":
            node.disk.fail_next(self.dice.one_of(["sync_now", "sync_now", "writev"]))

    def _boot(self) -> None:
        node = self.dice.one_of(self.nodes)
        if not node.is_up or node.is_failed:
            if node.is_up:
                self._kill_process(node)
            self._guarded(node, node.boot)

    def _replace(self) -> None:
        """Once: a disk is lost, or an old copy of one is restored.

        A copy is old enough when a later start of the node has registered: then R9 finds it out. A
        younger one only the confirm floor could, and that follows confirm by up to a second (R16).
        For the same reason its first registration arrives: a copy that starts again and again
        unheard counts its incarnation past the recorded one.
        """
        node = self.dice.one_of(self.nodes)
        if self._losses_left < 1 or not node.is_up or node.replica_id is None:
            return
        if self._cut_until > self.steps_count:
            return
        if self._backup is None and self.dice.happens(0.7):
            image = node.disk.crash_image(self.dice.random, keep_page_cache=False, survival=0.0)
            self._backup = (node, node.incarnation, image)
            return
        disk = MemoryDisk()
        if self._backup is not None:
            node, incarnation, disk = self._backup
            if self._registered_incarnation(node) <= incarnation:
                return
            self.note(f"{node.name} gets an old copy of its disk")
        else:
            if self.dice.happens(0.5):
                node.claimed = None
            self.note(f"{node.name} loses its disk")
        self._losses_left -= 1
        self._stop(node)
        node.boots_count += 1
        node.disk = disk
        self.judge.store_replaced(node.name)
        self._guarded(node, node.boot)
        self.controllers.deliver_registration(node.name, node.generation)

    def _registered_incarnation(self, node: Node) -> Incarnation:
        group = self.controllers.group
        if group is None or node.claimed is None:
            return Incarnation(0)
        return group.replicas[node.claimed].incarnation
