"""What mqadmin asks of controllers (1002, 1005, 1006), at the address of the name server.

A door is not a controller: it asks them, by the calls that `paceline` asks by. Replicas have the
numbers that they have in `paceline group`, and a master the address of its listener here.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from paceline.errors import BadRequestError
from paceline.types import GroupName
from paceline.wire.cluster import GroupView, ReplicaView
from paceline_gateway.remoting.call import Call
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import CLUSTER, RequestCode
from paceline_gateway.remoting.codec.frames import Command, lenient_json
from paceline_gateway.remoting.codec.routes import EPOCH_MAX, json_of
from paceline_gateway.remoting.naming import Addresses


class Controllers:
    """Handlers that know the listeners."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses

    def handlers(self) -> Mapping[int, Callable[[Call], Awaitable[Command]]]:
        return {
            RequestCode.CONTROLLER_ELECT_MASTER: self.elect,
            RequestCode.CONTROLLER_GET_METADATA_INFO: metadata,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self.in_sync,
        }

    async def in_sync(self, call: Call) -> Command:
        """1006: the sync state sets of broker groups; of those that there are."""
        wanted = lenient_json(bytes(call.request.body))
        try:
            names = msgspec.convert(wanted, list[str])
        except msgspec.ValidationError as error:
            raise BadRequestError(f"the body must be a list of broker names: {error}") from error
        view = await call.user.cluster.admin.view()
        addresses = self._addresses.of(call.peer.place)
        table = {
            name: _replicas(view.groups[GroupName(name)], addresses)
            for name in names
            if name in view.groups
        }
        return call.ok(body=json_of({"replicasInfoTable": table}))

    async def elect(self, call: Call) -> Command:
        """1002: has the replica of that number elected, or any (-1)."""
        groups = call.user.cluster.admin.broker_groups
        name = fields.text(call.request, "brokerName")
        number = fields.integer(call.request, "brokerId", -1)
        await groups.elect(name, preferred=None if number == -1 else number)
        group = GroupView.from_json(await groups.get(name))
        addresses = self._addresses.of(call.peer.place)
        told = _replicas(group, addresses)
        numbers = {
            "masterBrokerId": told["masterBrokerId"],
            "masterEpoch": told["masterEpoch"],
            "syncStateSetEpoch": told["syncStateSetEpoch"],
        }
        members = {
            str(number): _address(group, each, addresses) for number, each in group.replicas.items()
        }
        return call.ok(
            {
                "masterAddress": told["masterAddress"],
                **{field: str(number) for field, number in numbers.items()},
            },
            json_of({"brokerAddrs": members, "brokerName": name, "cluster": CLUSTER}),
        )


async def metadata(call: Call) -> Command:
    """1005: who leads, by its name; its address is this gateway's, where 1006 is asked then."""
    statuses = await call.user.cluster.admin.controllers.all()
    told = {address: status for address, status in statuses.items() if status is not None}
    leaders = [each["controller_id"] for each in told.values() if each["role"] == "leader"]
    names = [told[each]["controller_id"] if each in told else "?" for each in statuses]
    place = call.peer.place
    host = f"[{place.host}]" if ":" in place.host else place.host
    return call.ok(
        {
            "controllerLeaderAddress": f"{host}:{place.port}",
            "controllerLeaderId": leaders[0] if leaders else "",
            "group": CLUSTER,
            "isLeader": "true",
            "peers": ";".join(map("-".join, zip(names, statuses, strict=True))),
        }
    )


def _replicas(group: GroupView, addresses: Mapping[GroupName, str]) -> dict[str, Any]:
    """ReplicasInfo."""

    def row(each: ReplicaView) -> dict[str, Any]:
        return {
            "alive": each.is_alive,
            "brokerAddress": _address(group, each, addresses),
            "brokerId": each.replica_id,
            "brokerName": group.group,
        }

    replicas = [group.replicas[number] for number in sorted(group.replicas)]
    master = group.master_view()
    return {
        "inSyncReplicas": [
            row(each) for each in replicas if each.replica_id in group.sync_state_set
        ],
        "masterAddress": "" if master is None else _address(group, master, addresses),
        "masterBrokerId": -1 if master is None else master.replica_id,
        "masterEpoch": min(group.master_epoch, EPOCH_MAX),
        "notInSyncReplicas": [
            row(each) for each in replicas if each.replica_id not in group.sync_state_set
        ],
        "syncStateSetEpoch": min(group.set_epoch, EPOCH_MAX),
    }


def _address(group: GroupView, replica: ReplicaView, addresses: Mapping[GroupName, str]) -> str:
    if replica.replica_id == group.master:
        return addresses.get(group.group, replica.replication_address)
    return replica.replication_address
