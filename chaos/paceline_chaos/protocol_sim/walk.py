"""The single steps of the walk: one message, one sync, one request at a time."""

from collections.abc import Mapping
from typing import Any

from paceline.types import Incarnation, ReplicaId
from paceline_chaos.protocol_sim.clients import Client
from paceline_chaos.protocol_sim.controllers import Answer
from paceline_chaos.protocol_sim.doors import Door
from paceline_chaos.protocol_sim.faults import Faults
from paceline_chaos.protocol_sim.network import Connection
from paceline_chaos.protocol_sim.node import Node
from paceline_chaos.protocol_sim.process import StepDown
from paceline_chaos.protocol_sim.scene import is_master


class Walk(Faults):
    """Steps by name, as `world.CALM` draws them."""

    def __init__(self, seed: int, *, changes: Mapping[str, Any] | None = None) -> None:
        super().__init__(seed, changes=changes)
        self.clients: list[Client] = []
        self._known_version = 0
        self._flush_rate = self.dice.one_of([0.2, 0.5, 1.0])

    def _deliver(self) -> None:
        waiting = [
            (connection, end is connection.master)
            for connection in self.connections
            for end in (connection.replica, connection.master)
            if end.inbox and not self.is_paused(end.node) and not self._is_stuck(connection)
        ]
        if waiting:
            connection, is_to_master = self.dice.one_of(waiting)
            end = connection.master if is_to_master else connection.replica
            for _ in range(1 + self.dice.below(3)):
                if end.inbox:
                    self._deliver_to(connection, to_master=is_to_master)

    def _is_stuck(self, connection: Connection[Node]) -> bool:
        return not connection.is_broken and self._are_parted(
            connection.replica.node, connection.master.node
        )

    def _deliver_to(self, connection: Connection[Node], *, to_master: bool) -> None:
        end = connection.master if to_master else connection.replica
        message = end.inbox.popleft()
        node = end.node
        if not node.is_up or node.generation != end.generation:
            connection.close(end)
        elif end.is_open:
            self.guarded(node, lambda: node.receive(connection, message))
        if connection.is_over and connection in self.connections:
            self.connections.remove(connection)

    def _flush(self) -> None:
        self.at_some(Node.flush, lambda node: node.has_unflushed)

    def _client(self) -> None:
        self.dice.one_of(self.clients).step()

    def _serve(self) -> None:
        """A client's request reaches a broker."""
        doors = [
            door
            for door in self.doors
            if door.requests
            and door.node.generation == door.generation
            and self.acts(door.node)
            and (door.is_broken or not self.is_out_of_reach(door.client.name, door.node))
        ]
        if doors:
            door = self.dice.one_of(doors)
            if self.is_zombie(door.node):
                self.coverage.saw("zombie_requests")
            for _ in range(1 + self.dice.below(4)):
                if door.requests:
                    self._serve_one(door)

    def _serve_one(self, door: Door) -> None:
        node, led = door.node, door.node.mastership
        end, confirm = node.log.end, node.log.confirm
        can_accept = led is not None and led.term.can_accept()
        self.guarded(node, door.serve)
        if led is not None and node.mastership is led and node.log.end > end:
            self.judge.appended(
                node.name,
                unconfirmed=end - confirm,
                limit=self.unconfirmed_bytes_max,
                can_accept=can_accept,
            )

    def _hear(self) -> None:
        """An answer reaches a client, or the end of its connection."""
        doors = [
            door
            for door in self.doors
            if not door.is_left
            and (door.answers or door.is_broken)
            and (door.is_broken or not self.is_out_of_reach(door.client.name, door.node))
        ]
        if doors:
            door = self.dice.one_of(doors)
            for _ in range(1 + self.dice.below(6)):
                if not door.is_left:
                    door.deliver()

    def _sweep_doors(self) -> None:
        self.doors = [
            door
            for door in self.doors
            if not (door.is_left and (not door.requests or door.node.generation != door.generation))
        ]

    def _read(self) -> None:
        self.at_some(Node.read, is_master)

    def _connect(self) -> None:
        self.at_some(Node.connect, lambda node: node.wants_connection)

    def _ask_again(self) -> None:
        self.at_some(Node.ask_again, lambda node: bool(node.asked))

    def _log_checkpoint(self) -> None:
        self.at_some(Node.save_log_checkpoint, lambda node: True)

    def _request(self) -> None:
        requests = self.controllers.requests
        if requests:
            self.controllers.deliver_request(self.dice.below(len(requests)))

    def _answer(self) -> None:
        answers = self.controllers.answers
        if answers:
            self._answer_with(answers.pop(self.dice.below(len(answers))))

    def _answer_with(self, answer: Answer) -> None:
        node = self.node_named(answer.node)
        if self._is_deaf(node):
            self.controllers.answers.append(answer)
        elif node.is_up and node.generation == answer.generation and not self.dice.happens(0.05):
            self.guarded(node, lambda: node.answered(answer))

    def _view(self) -> None:
        nodes = [
            node for node in self.nodes if node.is_up and node.views and not self._is_deaf(node)
        ]
        if nodes:
            node = self.dice.one_of(nodes)
            view = node.views.pop(self.dice.below(len(node.views)))
            if not self.dice.happens(0.05):
                self.guarded(node, lambda: node.view_arrived(view))

    def _spread_views(self) -> None:
        """Every change is pushed to everybody, some of it late, twice or never."""
        if self.controllers.machine.version != self._known_version:
            view = self.controllers.view
            self._known_version = view.version
            for node in self.nodes:
                if node.is_up:
                    node.views.append(view)

    def _resync(self) -> None:
        """A session connects anew and is sent the present view."""
        node = self.dice.one_of(self.nodes)
        if node.is_up:
            node.views.append(self.controllers.view)

    def _alive(self) -> set[tuple[ReplicaId, Incarnation]]:
        """The starts whose port answers a probe, or lets it wait."""
        return {
            (node.replica_id, node.incarnation)
            for node in self.nodes
            if node.is_up and node.replica_id is not None
        }

    # -- transfers

    def _transfer(self) -> None:
        """The operator orders a hand-over, to somebody or to whoever is best."""
        group = self.controllers.group
        wanted = None if group is None else self.dice.one_of([None, *sorted(group.sync_state_set)])
        self.coverage.saw("transfers_ordered")
        self.at_some(lambda node: node.handing.order(wanted), is_master)

    def _step_down(self) -> None:
        """The leader hears a master that asked to be replaced; the master hears what came of it."""
        heard = [ask for ask in self.step_downs if not self.is_cut_off(ask.node)]
        if heard:
            self._hear_step_down(self.dice.one_of(heard))
        told = [
            (ask, refusal)
            for ask, refusal in self.step_down_answers
            if not self._is_deaf(ask.node) or ask.node.generation != ask.generation
        ]
        if told and self.dice.happens(0.7):
            self._tell_step_down(*self.dice.one_of(told))

    def _hear_step_down(self, ask: StepDown) -> None:
        self.step_downs.remove(ask)
        refusal = self.controllers.step_down(
            self._alive(),
            master=ask.node.replica_id,
            master_epoch=ask.master_epoch,
            preferred=ask.preferred,
        )
        self.coverage.saw("transfers_granted", refusal is None)
        self.step_down_answers.append((ask, refusal))

    def _tell_step_down(self, ask: StepDown, refusal: str | None) -> None:
        self.step_down_answers.remove((ask, refusal))
        is_there = ask.node.is_up and ask.node.generation == ask.generation
        if is_there and not ask.answer.done():
            self.guarded(ask.node, lambda: ask.answer.set_result(refusal))

    # -- many steps at once

    def _exchange(self) -> None:
        """Answers, views, timers, flushes and messages of all nodes that are not paused."""
        for _ in range(len(self.controllers.answers)):
            self._answer_with(self.controllers.answers.pop(0))
        for ask in list(self.step_downs):
            if not self.is_cut_off(ask.node):
                self._hear_step_down(ask)
        for ask, refusal in list(self.step_down_answers):
            if not self._is_deaf(ask.node):
                self._tell_step_down(ask, refusal)
        for node in self.nodes:
            if self.acts(node):
                self.guarded(node, lambda node=node: self._act_once(node))  # type: ignore[misc]
        self._answer_probes()
        for client in self.clients:
            client.step()
        self.deliver_all()

    def deliver_all(self) -> None:
        """Everything under way between nodes that can act arrives."""
        for connection in list(self.connections):
            for end in (connection.master, connection.replica):
                for _ in range(len(end.inbox)):
                    if end.inbox and not self.is_paused(end.node):
                        self._deliver_to(connection, to_master=end is connection.master)
        for door in list(self.doors):
            while door.requests and self.acts(door.node):
                if door.node.generation != door.generation:
                    door.requests.clear()
                    break
                self._serve_one(door)
            while not door.is_left and (door.answers or door.is_broken):
                door.deliver()
        self._sweep_doors()

    def _act_once(self, node: Node) -> None:
        if not self._is_deaf(node):
            node.heartbeat()
            node.views.clear()
            node.view_arrived(self.controllers.view)
        if node.wants_connection:
            node.connect()
        if self.dice.happens(self._flush_rate):
            node.flush()
            node.flush()

    def _answer_probes(self) -> None:
        probes, self._probes = self._probes, []
        for master, generation, replica, incarnation, answer in probes:
            node = self.node_of(replica)
            is_gone = node is None or node.incarnation != incarnation
            if master.generation == generation and self.acts(master):
                self.guarded(master, lambda: answer.set_result(is_gone))  # noqa: B023 - runs now

    def _settle(self) -> None:
        """A moment of calm within the walk, so that there is something to lose again."""
        for node in self.nodes:
            if not node.is_up:
                self.guarded(node, node.boot)
        for index in reversed(range(len(self.controllers.requests))):
            if self.dice.happens(0.6):  # some commands stay late
                self.controllers.deliver_request(index)
        self._exchange()
