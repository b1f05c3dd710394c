"""Pure: where topics are, as RocketMQ's clients read it: TopicRouteData, ClusterInfo.

A broker group is a broker to them, whose master is at the group's listener of this gateway.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from paceline.types import GroupName
from paceline.wire.cluster import ClusterView
from paceline.wire.names import RETRY_PREFIX
from paceline.wire.topics import PERM_BOTH, TopicView
from paceline_gateway.remoting.codec.codes import CLUSTER

PORT_STEP = 10
"""Between the listeners of two broker groups: each has a second one, two below (VIP)."""
VIP_BELOW = 2
DEFAULT_TOPIC = "TBW102"
"""Its route is that of topics which are made by the first send to them."""
EPOCH_MAX = 2**31 - 1
"""Clients read epochs as 32-bit numbers; ours are told as no more."""


def group_numbers(view: ClusterView) -> dict[GroupName, int]:
    """A number of each broker group that never changes, from 1: its listener is at the base port
    and so many steps."""
    return {name: group.number for name, group in view.groups.items()}


def route_of(topic: TopicView, addresses: Mapping[GroupName, str]) -> dict[str, Any]:
    """TopicRouteData of a topic. `addresses`: of the broker groups, as the client reaches them."""
    groups = [name for name in sorted(topic.queues) if name in addresses]
    return _route(
        {
            name: (topic.read_queues.get(name, 0), topic.write_queues.get(name, 0))
            for name in groups
        },
        addresses,
        perm=topic.perm,
    )


def route_of_retries(
    topic: str, view: ClusterView, addresses: Mapping[GroupName, str]
) -> dict[str, Any] | None:
    """TopicRouteData of a retry topic that is made with the first retry: consumers ask before.
    None: it is no retry topic."""
    if not topic.startswith(RETRY_PREFIX):
        return None
    found = view.consumer_groups.get(topic.removeprefix(RETRY_PREFIX))  # type: ignore[call-overload]
    count = 1 if found is None else found.settings.retry_queue_nums
    counts = {name: (count, count) for name in sorted(addresses)}
    return _route(counts, addresses, perm=PERM_BOTH)


def route_of_new(addresses: Mapping[GroupName, str]) -> dict[str, Any]:
    """TopicRouteData of a topic that is yet to be made: of one queue in each broker group, which it
    will have in any case. Clients ask again after 30 s at most."""
    return _route(dict.fromkeys(sorted(addresses), (1, 1)), addresses, perm=PERM_BOTH)


def _route(
    counts: Mapping[GroupName, tuple[int, int]],
    addresses: Mapping[GroupName, str],
    *,
    perm: int,
) -> dict[str, Any]:
    return {
        "brokerDatas": [_broker(name, addresses[name]) for name in counts],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": name,
                "perm": perm,
                "readQueueNums": read,
                "topicSysFlag": 0,
                "writeQueueNums": write,
            }
            for name, (read, write) in counts.items()
        ],
    }


def cluster_info(addresses: Mapping[GroupName, str]) -> dict[str, Any]:
    """ClusterInfo: all brokers."""
    return {
        "brokerAddrTable": {
            name: _broker(name, address) for name, address in sorted(addresses.items())
        },
        "clusterAddrTable": {CLUSTER: sorted(addresses)},
    }


def _broker(name: str, address: str) -> dict[str, Any]:
    return {
        "brokerAddrs": {"0": address},
        "brokerName": name,
        "cluster": CLUSTER,
        "enableActingMaster": False,
    }


def json_of(document: object) -> bytes:
    """With sorted keys, as clients that compare texts need it."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
