"""What mqadmin asks of the nodes themselves: a broker group is a broker, the gateway a name server.

What would change a node's settings is refused: by that code RocketMQ's brokers were taken over
(CVE-2023-33246).
"""

from collections.abc import Awaitable, Callable, Mapping

from paceline.errors import GroupNotFoundError
from paceline.types import GroupName
from paceline.wire.cluster import GroupView
from paceline_gateway.remoting.call import Call, group_of
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import (
    CLUSTER,
    SERVER_VERSION,
    RequestCode,
    ResponseCode,
    version_text,
)
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.routes import EPOCH_MAX, json_of

_DESCRIPTION = "V" + version_text(SERVER_VERSION).replace(".", "_")


async def refuse_settings(call: Call) -> Command:
    """25, 318, 1009; 100: there is no order configuration."""
    return call.request.answer(
        ResponseCode.NO_PERMISSION,
        remark="settings of nodes are not changed over the network: change the node's file and"
        " start it again; those of a broker group are changed at a controller (PUT"
        " /v1/groups/GROUP/settings, docs/OPERATIONS.md); topics keep the order of each queue"
        " without being told",
    )


async def forget_key(call: Call) -> Command:
    """102: none is kept."""
    return call.ok()


async def no_key(call: Call) -> Command:
    """101."""
    return call.request.answer(ResponseCode.QUERY_NOT_FOUND, remark="no such key is kept here")


async def name_server_config(call: Call) -> Command:
    """319; 1010 of a controller."""
    return call.ok(body=f"clusterName={CLUSTER}\nproductEnvName=center\n".encode())


async def broker_config(call: Call) -> Command:
    """26: the settings of the broker group, to be read only."""
    group = _group(call, group_of(call))
    settings = {
        "brokerClusterName": CLUSTER,
        "brokerId": 0,
        "brokerName": group.group,
        **{name: value for name, value in group.settings.to_json().items() if value is not None},
    }
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    return call.ok({"version": "{}"}, text.encode())


async def runtime_info(call: Call) -> Command:
    """28."""
    group = _group(call, group_of(call))
    table = {
        "bootTimestamp": "0",
        "brokerActive": str(group.master is not None).lower(),
        "brokerVersion": str(SERVER_VERSION),
        "brokerVersionDesc": _DESCRIPTION,
        "getTransferredTps": "0.0 0.0 0.0",
        "msgGetTotalTodayNow": "0",
        "msgPutTotalTodayNow": "0",
        "putTps": "0.0 0.0 0.0",
    }
    return call.ok(body=json_of({"table": table}))


async def ha_status(call: Call) -> Command:
    """907: who follows the master."""
    group = _group(call, group_of(call))
    followers = [each for id_, each in group.replicas.items() if id_ != group.master]
    rows = [
        {
            "addr": each.replication_address,
            "diff": 0,
            "inSync": each.replica_id in group.sync_state_set,
            "slaveAckOffset": 0,
            "transferFromWhere": 0,
            "transferredByteInSecond": 0,
        }
        for each in followers
    ]
    document = {
        "haConnectionInfo": rows,
        "inSyncSlaveNums": sum(bool(row["inSync"]) for row in rows),
        "master": True,
        "masterCommitLogMaxOffset": 0,
    }
    return call.ok(body=json_of(document))


async def epochs(call: Call) -> Command:
    """1007: which epoch wrote which bytes of the master's log."""
    group = _group(call, group_of(call))
    tables = await call.user.cluster.admin.broker_groups.epochs(str(group.group))
    told = next((each for id_, each in tables.items() if each and id_ == group.master), None)
    rows = [] if told is None else told["epochs"]
    document = {
        "brokerId": 0,
        "brokerName": group.group,
        "clusterName": CLUSTER,
        "epochList": [
            {
                "endOffset": row["end"],
                "epoch": min(row["epoch"], EPOCH_MAX),
                "startOffset": row["start"],
            }
            for row in rows
        ],
        "maxOffset": rows[-1]["end"] if rows else 0,
    }
    return call.ok(body=json_of(document))


async def wipe_writes(call: Call) -> Command:
    """205: nobody sends to a broker group any more."""
    return await _writes(call, "wipeTopicCount", writable=False)


async def add_writes(call: Call) -> Command:
    """327: they may again."""
    return await _writes(call, "addTopicCount", writable=True)


async def _writes(call: Call, name: str, *, writable: bool) -> Command:
    group = fields.text(call.request, "brokerName")
    await call.user.cluster.admin.broker_groups.set_write_permission(group, writable=writable)
    view = call.user.cluster.cluster.view
    topics = () if view is None else view.topics.values()
    return call.ok({name: str(sum(group in each.queues for each in topics))})


def _group(call: Call, name: GroupName) -> GroupView:
    view = call.user.cluster.cluster.view
    group = None if view is None else view.groups.get(name)
    if group is None:
        raise GroupNotFoundError(f"there is no broker group {name}", group=name)
    return group


Handler = Callable[[Call], Awaitable[Command]]

AT_NAME_SERVER: Mapping[int, Handler] = {
    RequestCode.PUT_KV_CONFIG: refuse_settings,
    RequestCode.GET_KV_CONFIG: no_key,
    RequestCode.DELETE_KV_CONFIG: forget_key,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: wipe_writes,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: add_writes,
    RequestCode.UPDATE_NAMESRV_CONFIG: refuse_settings,
    RequestCode.GET_NAMESRV_CONFIG: name_server_config,
    RequestCode.UPDATE_CONTROLLER_CONFIG: refuse_settings,
    RequestCode.GET_CONTROLLER_CONFIG: name_server_config,
}
AT_BROKER: Mapping[int, Handler] = {
    RequestCode.UPDATE_BROKER_CONFIG: refuse_settings,
    RequestCode.GET_BROKER_CONFIG: broker_config,
    RequestCode.GET_BROKER_RUNTIME_INFO: runtime_info,
    RequestCode.GET_BROKER_HA_STATUS: ha_status,
    RequestCode.GET_BROKER_EPOCH_CACHE: epochs,
}
