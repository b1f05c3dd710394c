"""What operators do in a world on purpose: machines replaced, controllers exchanged, leaders moved.

Owner of what is under way of that. A replaced broker dies for ever; its successor has another name,
address and store, and the operator takes the old replica off the record once it is no member. A
replaced controller lives until the members have changed, unless it died before: the new one joins
under a new id, and whoever leads takes the old one out (R18). What is asked for is asked again,
through everything else that goes on.
"""

from collections import Counter
from collections.abc import Callable, Collection

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError
from paceline.platform.runtime import pause
from paceline.types import ReplicaId
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around
from paceline_chaos.cluster_sim.nodes import BrokerNode, ControllerServer, Node
from paceline_chaos.cluster_sim.stage import Stage
from paceline_chaos.faults.plan import Fault

End = Callable[[], None]
_LOOK_MS = 300
_ROUNDS_MAX = 200
"""A minute of looks: then the world is over long since."""


class Operations:
    """See the module. `done` counts what was carried out to its end."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._leaving: ControllerServer | None = None
        self._joining: ControllerServer | None = None
        self.done: Counter[str] = Counter()

    def is_exchanging(self, broken: Collection[str]) -> bool:
        """Whether a controller is still to take another's place, and nothing stands against it."""
        return self._joining is not None and self._joining.name not in broken

    def whom(self, name: str) -> str:
        """Who is replaced if this node is to be: of controllers whoever has lost its disk first."""
        controllers = self._stage.controllers
        lost = [one.name for one in controllers.values() if one.has_lost_disk]
        return lost[0] if lost and name in controllers else name

    # -- brokers -----------------------------------------------------------------------------------

    def replace(self, fault: Fault, node: Node) -> End | None:
        """Begin to replace a node; the end brings the new machine, None if nothing was begun."""
        if isinstance(node, ControllerServer):
            return self._replace_controller(node, is_dead=fault.details.get("dead") == 1)
        if not isinstance(node, BrokerNode) or node.name in self._stage.topology.learners:
            return None
        broker, group = node.broker, node.group
        replica = None if broker is None else broker.role.identity.replica_id
        self._stage.retire(node)

        def come() -> None:
            self._stage.add_broker(group).start()
            if replica is not None:
                self._stage.begin_tool(lambda around: self._forget(around, group, replica))

        return come

    async def _forget(self, around: Around, group: str, replica: ReplicaId) -> None:
        """Take a replica off the record; it is refused as long as it is a member."""
        cluster = around.cluster()
        try:
            async with AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS) as admin:
                for _ in range(_ROUNDS_MAX):
                    state = self._stage.group_state(group)
                    if state is not None and replica not in state.replicas:
                        self.done["brokers_replaced"] += 1
                        return
                    try:
                        await admin.broker_groups.remove_replica(group, replica)
                    except PacelineError:
                        await pause(_LOOK_MS)
        finally:
            await cluster.close()

    # -- controllers -------------------------------------------------------------------------------

    def _replace_controller(self, old: ControllerServer, *, is_dead: bool) -> End | None:
        """One change at a time; who dies before must be one that the others can do without."""
        if self._leaving is not None or (is_dead and not self._stage.can_spare(old.name, [])):
            return None
        self._leaving = old
        old.is_leaving = True
        if is_dead:
            self._stage.retire(old)

        def come() -> None:
            new = self._joining = self._stage.add_controller()
            new.start()
            self._stage.begin_tool(lambda around: self._exchange(around, old, new))

        return come

    async def _exchange(self, around: Around, old: ControllerServer, new: ControllerServer) -> None:
        cluster = around.cluster()
        try:
            async with AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS) as admin:
                for _ in range(_ROUNDS_MAX):
                    try:
                        if await self._look_after(admin, old.name, new.name):
                            self._exchanged(old, new)
                            return
                    except PacelineError:
                        pass  # nobody leads, or it was refused for now: the next look tells
                    if around.is_over() and not new.is_running:
                        return  # it was broken for ever before it had joined
                    await pause(_LOOK_MS)
        finally:
            await cluster.close()

    async def _look_after(self, admin: AdminClient, old: str, new: str) -> bool:
        """Whether the members have changed; asks for what is still to be asked."""
        found = await admin.controllers.members()
        names = {row["controller_id"]: row["is_voter"] for row in found["members"]}
        if new not in names:
            addresses = self._stage.addresses
            await admin.controllers.add(
                new, raft=addresses.raft(new), client=addresses.controller(new), replaces=old
            )
            return False
        is_settled = found["leaving"] is None and names[new]
        if is_settled and old in names:  # it was asked for before, and given up with a leader
            await admin.controllers.remove(old)
            return False
        return is_settled and found["generation"] == found["committed_generation"]

    def _exchanged(self, old: ControllerServer, new: ControllerServer) -> None:
        """The old one is told by the others, or ended here: its folder is deleted either way."""
        self._leaving = self._joining = None
        self.done["controllers_replaced"] += 1
        self._stage.addresses.replace_controller(old.name, new.name)
        if old.name in self._stage.nodes:
            self._stage.retire(old)

    # -- orders ------------------------------------------------------------------------------------

    def order(self, fault: Fault, node: Node, finish: End) -> bool:
        """Have the target lead its group, or the controllers; whether there was whom to ask."""
        if isinstance(node, ControllerServer) and fault.kind == "lead":
            self._stage.begin_tool(lambda around: self._lead(around, node.name, finish))
            return True
        broker = node.broker if isinstance(node, BrokerNode) else None
        replica = None if broker is None else broker.role.identity.replica_id
        if not isinstance(node, BrokerNode) or replica is None or fault.kind != "transfer":
            return False
        group = node.group
        self._stage.begin_tool(lambda around: self._transfer(around, group, replica, finish))
        return True

    async def _lead(self, around: Around, name: str, finish: End) -> None:
        cluster = around.cluster()
        try:
            async with AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS) as admin:
                await admin.controllers.transfer_leadership(name)
                self.done["leaders_ordered"] += 1
        except PacelineError:
            return  # refused, or nobody knows: the world goes on either way
        finally:
            finish()
            await cluster.close()

    async def _transfer(self, around: Around, group: str, replica: ReplicaId, finish: End) -> None:
        cluster = around.cluster()
        try:
            async with AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS) as admin:
                await admin.broker_groups.transfer(group, to=replica)
                self.done["masters_ordered"] += 1
        except PacelineError:
            return  # as above
        finally:
            finish()
            await cluster.close()
