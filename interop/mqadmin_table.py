"""Commands of mqadmin and what they print, to be run against RocketMQ and against paceline.

The shapes were taken from RocketMQ 5.5.0. Each is a regular expression that the output has to have
somewhere. {names} stand for values of a `Scene`, in command lines and shapes; a named group of a
shape adds one.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from interop.java import InteropError

Scene = Mapping[str, str]
"""cluster, broker_name, broker (its address), nameserver, and names that are not there yet: topic
and group. With clients that run: live_topic, live_group and live_producer. With controllers:
controller (the address of one), and replica: the number of a follower that is in sync. Where users
are kept: user and password."""


class Command(NamedTuple):
    """One command line, and its shapes. Without the values that it names, it is left out."""

    line: str
    shapes: tuple[str, ...]


TABLE = (
    Command(
        "updateTopic -c {cluster} -t {topic} -r 4 -w 4 -a +message.type=NORMAL",
        (r"create topic to {broker} success", r"topicName={topic}, .*writeQueueNums=4"),
    ),
    Command(
        "updateSubGroup -c {cluster} -g {group}",
        (r"create subscription group to {broker} success", r"groupName={group}"),
    ),
    Command(
        "topicRoute -t {topic}",
        (r'"brokerName":"{broker_name}"', r'"writeQueueNums":4', r'0:"{broker}"'),
    ),
    Command(
        "sendMessage -t {topic} -p hello -k key-1 -c TagA",
        (r"{broker_name} +\d +SEND_OK +(?P<unique_key>[0-9A-F]{{32,}})",),
    ),
    Command("clusterList", (r"{cluster} +{broker_name} +0 +{broker} +V\S+ .* true",)),
    Command(
        "brokerStatus -b {broker}",
        (
            r"bootTimestamp +: \d+",
            r"brokerVersionDesc +: V",
        ),
    ),
    Command("topicList", (r"(?m)^{topic}$",)),
    Command("topicList -c", (r"{cluster} +{topic} ",)),
    Command(
        "topicStatus -t {topic}",
        (r"{broker_name} +3 +0 +\d", r"{broker_name} +\d +0 +1 +\d{{4}}-\d\d-\d\d"),
    ),
    Command("topicClusterList -t {topic}", (r"(?m)^{cluster}$",)),
    Command(
        "updateTopicPerm -c {cluster} -t {topic} -p 6",
        (r"update topic perm from 6 to 6 in {broker} success",),
    ),
    Command("queryMsgByKey -t {topic} -k key-1", (r"{unique_key} +\d +0 ",)),
    Command(
        "queryMsgByUniqueKey -t {topic} -i {unique_key}",
        (r"Tags: +\[TagA\]", r"Keys: +\[key-1\]", r"Queue ID: +(?P<queue>\d)", r"UNIQ_KEY="),
    ),
    Command(
        "queryMsgByOffset -t {topic} -b {broker_name} -i {queue} -o 0",
        (r"OffsetID: +(?P<offset_id>[0-9A-F]{{32}})", r"Topic: +{topic}", r"Queue Offset: +0"),
    ),
    Command(
        "queryMsgById -t {topic} -i {offset_id}",
        (r"Topic: +{topic}", r"Store Host: +{broker}", r"UNIQ_KEY={unique_key}"),
    ),
    Command(
        "printMsg -t {topic}",
        (r"minOffset=0, maxOffset=1, MessageQueue \[topic={topic}", r"MSGID: {unique_key}"),
    ),
    Command(
        "printMsgByQueue -t {topic} -a {broker_name} -i {queue} -p true -f false",
        (r"MSGID: {unique_key}",),
    ),
    Command(
        "consumeMessage -t {topic} -b {broker_name} -i {queue} -o 0 -c 1",
        (r"Consume ok", r"MSGID: {unique_key}"),
    ),
    Command("consumerProgress", (r"#Group +#Count +#Version",)),
    Command(
        "consumerProgress -g {live_group}",
        (r"{live_topic} +{broker_name} +\d +\d+ +\d+ +\d+", r"Consume TPS"),
    ),
    Command(
        "consumerConnection -g {live_group}",
        (
            r"(?m)^(?P<client_id>\S+) +127\.0\.0\.1:\d+ +\S+ +V",
            r"{live_topic} +\*",
            r"ConsumeType: CONSUME_PASSIVELY",
        ),
    ),
    Command(
        "consumerStatus -g {live_group} -i {client_id}",
        (r"#Consumer Properties#", r"#Consumer MQ Detail#"),
    ),
    Command("consumerStatus -g {live_group}", (r"Same subscription in the same group",)),
    Command("producerConnection -g {live_producer} -t {live_topic}", (r"0001 .*127\.0\.0\.1:\d+",)),
    Command("producer -b {broker}", (r"producer group \(\S+\) instance : clientId=",)),
    Command(
        "resetOffsetByTime -g {group} -t {topic} -s -1",
        (r"start reset consumer offset", r"{broker_name} +\d +1\b"),
    ),
    Command(
        "cloneGroupOffset -s {group} -d {group}-2 -t {topic} -o true",
        (r"clone group offset success\. srcGroup\[{group}\]",),
    ),
    Command("skipAccumulatedMessage -g {group} -t {topic}", (r"{broker_name} +{queue} +1\b",)),
    Command("brokerConsumeStats -b {broker}", (r"#Topic +#Group +#Broker Name +#QID",)),
    Command("statsAll -t {topic}", (r"#Topic +#Consumer Group +#Accumulation", r"{topic} ")),
    Command(
        "getConsumerConfig -g {group}",
        (r"{cluster}:{broker_name}", r"groupName += +{group}", r"retryMaxTimes += +16"),
    ),
    Command(
        "queryCq -t {topic} -q {queue} -i 0 -b {broker}",
        (r"max: 1, min: 0", r"physicOffset=\d+"),
    ),
    Command("getNamesrvConfig", (r"=+{nameserver}=+", r"(?m)^\w+ += +\S")),
    Command("getBrokerConfig -b {broker}", (r"=+{broker}=+", r"(?m)^\w+ += +\S")),
    Command(
        "allocateMQ -t {topic} -i 192.0.2.1,192.0.2.2",
        (r'"result":', r'"192.0.2.2":\[', r'"topic":"{topic}"'),
    ),
    Command("haStatus -b {broker}", (r"#MasterAddr\s+{broker}", r"#InSyncSlaveNum\s+\d")),
    Command(
        "getSyncStateSet -a {controller} -b {broker_name}",
        (r"#MasterAddr\s+{broker}", r"InSyncReplica:\s.*brokerAddress='{broker}', alive=true"),
    ),
    Command(
        "getBrokerEpoch -b {broker_name}", (r"#brokerAddr\s+{broker}", r"EpochEntry\{{epoch=\d")
    ),
    Command("getControllerMetaData -a {controller}", (r"#ControllerLeaderAddress\s+\S+:\d+",)),
    Command(
        "setConsumeMode -c {cluster} -t {topic} -g {group} -m POP -q 4",
        (r"set consume mode to {broker} success", r"consume mode\[POP\] popShareQueueNum\[4\]"),
    ),
    Command(
        "wipeWritePerm -b {broker_name}",
        (r"wipe write perm of broker\[{broker_name}\] in name server\[\S+\] OK, \d+",),
    ),
    Command(
        "addWritePerm -b {broker_name}",
        (r"add write perm of broker\[{broker_name}\] in name server\[\S+\] OK, \d+",),
    ),
    Command(
        "updateOrderConf -t {topic} -m put -v {broker_name}:4",
        (r"update orderConf success\. topic=\[{topic}\], orderConf=\[{broker_name}:4\]",),
    ),
    Command(
        "createUser -c {cluster} -u {user} -p {password}", (r"create user to {broker} success",)
    ),
    Command("getUser -c {cluster} -u {user}", (r"{user} +\S+ +Normal +enable",)),
    Command("updateUser -c {cluster} -u {user} -s disable", (r"update user to {broker} success",)),
    Command("listUser -c {cluster} -f {user}", (r"{user} +\S+ +Normal +disable",)),
    Command(
        "createAcl -c {cluster} -s User:{user} -r Topic:{topic},Group:* -a PUB,Sub -d ALLOW",
        (r"create acl to {broker} success",),
    ),
    Command(
        "updateAcl -c {cluster} -s User:{user} -r Topic:{topic} -a Sub -i 192.0.2.0/24 -d Deny",
        (r"update acl to {broker} success",),
    ),
    Command(
        "getAcl -c {cluster} -s User:{user}",
        (
            r"User:{user} +Custom +Topic:{topic} +\[Sub\] +\[192\.0\.2\.0/24\] +Deny",
            r"User:{user} +Custom +Group:\* +\[Pub, Sub\] +\S+ +Allow",
        ),
    ),
    Command(
        "listAcl -c {cluster} -s {user} -r Topic", (r"User:{user} +Custom +Topic:{topic} +\[Sub\]",)
    ),
    Command("deleteAcl -c {cluster} -s User:{user}", (r"delete acl to {broker} success",)),
    Command("deleteUser -c {cluster} -u {user}", (r"delete user to {broker} success",)),
    Command("deleteSubGroup -c {cluster} -g {group}", (r"delete subscription group \[{group}\]",)),
    Command("deleteTopic -c {cluster} -t {topic}", (r"delete topic \[{topic}\] from cluster",)),
)


async def complaints(mqadmin: Callable[..., Awaitable[str]], scene: Scene) -> list[str]:
    """Run all commands for which the scene has values; what is wrong with their output."""
    values, found = dict(scene), []
    for command in TABLE:
        if not set(re.findall(r"(?<!\{)\{(\w+)\}", command.line)) <= set(values):
            continue
        line = command.line.format(**values)
        try:
            output = await mqadmin(*line.split())
        except InteropError as error:
            found.append(f"{line}: {error}")
            continue
        quoted = {name: re.escape(value) for name, value in values.items()}
        for shape in command.shapes:
            match = re.search(shape.format(**quoted), output)
            if match is None:
                found.append(f"{line}: no {shape} in\n{output[:600]}")
            else:
                values |= match.groupdict()
    return found
