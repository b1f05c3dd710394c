"""A real RocketMQ 5.5 in controller mode, started here to be compared with.

`python -m interop.rocketmq` starts one and tells its addresses until Ctrl-C.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from interop.java import InteropError, Jvm, java_command, rocketmq_jars
from interop.mqadmin import Mqadmin

from paceline.cli.local.free_ports import free_ports
from paceline.platform.runtime import SystemClock, pause

HOST = "127.0.0.1"
CLUSTER = "DefaultCluster"
GROUP = "broker-a"
SYNCER_TOPIC = "DefaultHeartBeatSyncerTopic"
"""Proxies tell each other their clients in it."""
START_TIMEOUT_MS = 120_000
"""Six JVMs on two cores that others use too; alone they take some 15 s."""
USER, SECRET = "rocketmq", "rocketmq-secret"
"""The first user, a super user, of a cluster with rights."""
Found = TypeVar("Found")
_AUTH = "org.apache.rocketmq.auth"


class RocketMQ:
    """One cluster: a name server, controllers, one broker group, and the proxy in cluster mode.

    Owns its processes and its folder. Differs from RocketMQ's defaults in short times (elections,
    transaction checks, delay levels 3 to 6, which retries use), and where a feature is off by
    default: SQL filters, recall. Topics are not created by a send, groups are.
    """

    def __init__(
        self,
        *,
        controllers: int = 1,
        replicas: int = 2,
        has_rights: bool = False,
        is_measured: bool = False,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rocketmq-"))
        self._replicas = replicas
        self._has_rights = has_rights
        self._is_measured = is_measured
        ports = free_ports(3 + controllers + replicas, host=HOST)
        self.nameserver = f"{HOST}:{ports[0]}"
        """For remoting clients and mqadmin."""
        self.grpc_endpoint = f"{HOST}:{ports[1]}"
        """The proxy's, TLS and plain."""
        self.remoting_endpoint = f"{HOST}:{ports[2]}"
        """The proxy's, which is name server and broker at once for remoting clients."""
        self.controllers = [f"{HOST}:{port}" for port in ports[3 : 3 + controllers]]
        self.brokers = [f"{HOST}:{_broker_port()}" for _ in range(replicas)]
        self._ha_ports = ports[3 + controllers :]
        self._jvms: dict[str, Jvm] = {}
        self.mqadmin = Mqadmin(nameserver=self.nameserver, home=self._home("mqadmin"))
        """RocketMQ's own tools: `await cluster.mqadmin("clusterList")` is what they print."""

    async def start(self) -> None:
        """Returns once clients of all kinds can work. Raises InteropError, and stops what runs."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        await self._launch("namesrv", "namesrv.NamesrvStartup", self._namesrv(), heap_mb=64)
        for index in range(len(self.controllers)):
            name = f"controller-{index}"
            await self._launch(
                name, "controller.ControllerStartup", self._controller(index), heap_mb=96
            )
        for index in range(self._replicas):
            await self.start_broker(index)
        await self.wait_for_master()
        await self.wait_for_replicas()
        # Without it, a proxy creates it, looks three times at once, and ends if it sees none.
        await self._until(self._syncer_topic, f"the topic {SYNCER_TOPIC}")
        await self._launch("proxy", "proxy.ProxyStartup", self._proxy(), heap_mb=256)
        await self._until(self._proxy_listens, "a proxy that listens")

    async def stop(self) -> None:
        """End all that it started, and remove its folder."""
        for jvm in reversed(self._jvms.values()):
            await jvm.kill()
        self._jvms.clear()
        await self.mqadmin.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def pids(self) -> dict[str, int]:
        """The process ids of its servers that run, by their names."""
        return {name: jvm.process.pid for name, jvm in self._jvms.items() if not jvm.has_ended}

    async def create_topic(self, topic: str, *, queues: int = 4, kind: str = "NORMAL") -> None:
        """`kind`: NORMAL, FIFO, DELAY or TRANSACTION, which the proxy checks."""
        await self.mqadmin(
            *("updateTopic", "-c", CLUSTER, "-t", topic, "-r", str(queues), "-w", str(queues)),
            *("-a", f"+message.type={kind}"),
        )

    async def create_group(self, group: str, *, is_ordered: bool = False) -> None:
        """`is_ordered`: its gRPC push consumers get messages of one message group in turn."""
        await self.mqadmin(
            *("updateSubGroup", "-c", CLUSTER, "-g", group, "-o", str(is_ordered).lower())
        )

    async def master(self) -> str | None:
        """The address of the broker that the name server tells as master; None: there is none."""
        for line in (await self.mqadmin("clusterList")).splitlines():
            words = line.split()
            if words[1:3] == [GROUP, "0"]:
                return words[3]
        return None

    async def wait_for_master(self, *, other_than: str | None = None) -> str:
        """The address of the master, once there is one that is not `other_than`."""

        async def elected() -> str | None:
            master = await self.master()
            return master if master != other_than else None

        return await self._until(elected, f"a master of {GROUP}")

    async def wait_for_replicas(self) -> None:
        """Until all replicas are in sync, and the name server tells of all of them."""
        await self._until(self._all_in_sync, "all replicas in sync")

    async def kill_master(self) -> str:
        """SIGKILL to the master; its address. `start_broker` brings it back."""
        master = await self.wait_for_master()
        await self._jvms[f"broker-{self.brokers.index(master)}"].kill()
        return master

    async def start_broker(self, index: int) -> None:
        """Start one replica, at first or after it was killed."""
        await self._launch(
            f"broker-{index}", "broker.BrokerStartup", self._broker(index), heap_mb=384
        )

    async def _all_in_sync(self) -> bool:
        output = await self.mqadmin("getSyncStateSet", "-a", self.controllers[0], "-b", GROUP)
        listed = (await self.mqadmin("clusterList")).count(GROUP)
        return output.count("InSyncReplica:") == listed == self._replicas

    async def _syncer_topic(self) -> bool:
        await self.create_topic(SYNCER_TOPIC, queues=1)
        return GROUP in await self.mqadmin("topicRoute", "-t", SYNCER_TOPIC)

    async def _proxy_listens(self) -> bool:
        return await _listens(self.grpc_endpoint) and await _listens(self.remoting_endpoint)

    async def _launch(self, name: str, main: str, config: Path, *, heap_mb: int) -> None:
        jars = await rocketmq_jars()
        flag = "-pc" if name == "proxy" else "-c"
        main = f"org.apache.rocketmq.{main}"
        home = self._home(name)
        command = java_command(
            *(jars, main, flag, str(config)),
            home=home,
            heap_mb=heap_mb,
            is_measured=self._is_measured,
        )
        self._jvms[name] = await Jvm.start(name, command, log_path=home / "output.log")

    async def _until(self, probe: Callable[[], Awaitable[Found | None]], what: str) -> Found:
        """What `probe` returns once it is true. Raises InteropError: late, or a server ended."""
        clock = SystemClock()
        deadline_ms = clock.monotonic_ms() + START_TIMEOUT_MS
        reason = ""
        while clock.monotonic_ms() < deadline_ms:
            for jvm in self._jvms.values():
                if jvm.has_ended and jvm.process.returncode != -9:
                    code = jvm.process.returncode
                    raise InteropError(f"RocketMQ's {jvm.name} ended ({code})\n{jvm.log_end()}")
            try:
                found = await probe()
            except InteropError as error:  # mqadmin: the servers do not answer yet
                reason = str(error)
            else:
                if found:
                    return found
            await pause(100)
        logs = "\n".join(f"{jvm.name}: {jvm.log_end(3)}" for jvm in self._jvms.values())
        raise InteropError(
            f"RocketMQ did not have {what} within {START_TIMEOUT_MS // 1000} s\n{reason}\n{logs}"
        )

    def _home(self, name: str) -> Path:
        home = self._folder / name
        if not home.is_dir():
            (home / "conf").mkdir(parents=True)
            keys = f"accessKey: {USER}\nsecretKey: {SECRET}\n"
            (home / "conf/tools.yml").write_text(keys if self._has_rights else "")
        return home

    def _write(self, name: str, settings: Mapping[str, object]) -> Path:
        path = self._home(name) / "conf/server.conf"
        lines = (f"{key}={_text(value)}\n" for key, value in settings.items())
        path.write_text("".join(lines))
        return path

    def _namesrv(self) -> Path:
        return self._write(
            "namesrv",
            {"listenPort": _port(self.nameserver), "scanNotActiveBrokerInterval": 1000},
        )

    def _controller(self, index: int) -> Path:
        name = f"controller-{index}"
        peers = (f"n{number}-{address}" for number, address in enumerate(self.controllers))
        return self._write(
            name,
            {
                "controllerDLegerGroup": "controllers",
                "controllerDLegerPeers": ";".join(peers),
                "controllerDLegerSelfId": f"n{index}",
                "controllerStorePath": self._home(name) / "store",
                "mappedFileSize": 16 << 20,
                "scanNotActiveBrokerInterval": 500,
                "scanInactiveMasterInterval": 500,
            },
        )

    def _broker(self, index: int) -> Path:
        name = f"broker-{index}"
        store = self._home(name) / "store"
        names = {
            "brokerClusterName": CLUSTER,
            "brokerName": GROUP,
            "brokerId": -1,  # the controller gives one
            "namesrvAddr": self.nameserver,
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "listenPort": _port(self.brokers[index]),
            "haListenPort": self._ha_ports[index],
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "storePathEpochFile": store / "epoch",
            "enableControllerMode": True,
            "controllerAddr": ";".join(self.controllers),
            "totalReplicas": self._replicas,
            "allAckInSyncStateSet": True,
        }
        return self._write(name, names | _BROKER | (self._rights() if self._has_rights else {}))

    def _proxy(self) -> Path:
        grpc, remoting = _port(self.grpc_endpoint), _port(self.remoting_endpoint)
        settings: dict[str, object] = {
            "rocketMQClusterName": CLUSTER,
            "proxyMode": "cluster",
            "namesrvAddr": self.nameserver,
            "grpcServerPort": grpc,
            "remotingListenPort": remoting,
            "localServeAddr": HOST,
            "remotingAccessAddr": HOST,
            "topicRouteServiceCacheRefreshSeconds": 1,
            "topicConfigCacheRefreshSeconds": 1,
            "subscriptionGroupConfigCacheRefreshSeconds": 1,
        }
        if self._has_rights:
            provider = f"{_AUTH}.proxy.ProxyAuthenticationMetadataProvider"
            settings |= self._rights() | {"authenticationMetadataProvider": provider}
        path = self._home("proxy") / "conf/rmq-proxy.json"
        path.write_text(json.dumps(settings, default=str))
        return path

    def _rights(self) -> dict[str, object]:
        return {
            "authenticationEnabled": True,
            "authorizationEnabled": True,
            "authenticationProvider": f"{_AUTH}.authentication.provider"
            ".DefaultAuthenticationProvider",
            "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
            "authenticationMetadataProvider": f"{_AUTH}.authentication.provider"
            ".LocalAuthenticationMetadataProvider",
            "authorizationMetadataProvider": f"{_AUTH}.authorization.provider"
            ".LocalAuthorizationMetadataProvider",
            "initAuthenticationUser": json.dumps({"username": USER, "password": SECRET}),
            "innerClientAuthenticationCredentials": json.dumps(
                {"accessKey": USER, "secretKey": SECRET}
            ),
        }


_BROKER: dict[str, object] = {
    # Small files: a folder of a test, not a store of a year.
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 600_000,
    "mappedFileSizeTimerLog": 4 << 20,
    "timerFlushIntervalMs": 30_000,  # it compares 37 MB each time
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
    # Short times.
    "brokerHeartbeatInterval": 500,
    "brokerNotActiveTimeoutMillis": 3000,
    "controllerHeartBeatTimeoutMills": 3000,
    "registerNameServerPeriod": 10_000,
    "syncBrokerMetadataPeriod": 1000,
    "syncControllerMetadataPeriod": 1000,
    "checkSyncStateSetPeriod": 1000,
    # More than the 3 s that its notes of commits wait: what has no note is asked about again.
    "transactionTimeOut": 4000,
    "transactionCheckInterval": 4000,
    "messageDelayLevel": "1s 5s 1s 1s 1s 1s 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h",
    # Features.
    "enablePropertyFilter": True,
    "recallMessageEnable": True,
    "traceTopicEnable": True,
    "autoCreateTopicEnable": False,
    # Two busy cores are not a broken disk.
    "waitTimeMillsInSendQueue": 5000,
}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _broker_port() -> int:
    """A broker listens two ports below its own one, too."""
    while True:
        (port,) = free_ports(1, host=HOST)
        with socket.socket() as below, contextlib.suppress(OSError):
            below.bind((HOST, port - 2))
            return port


async def _listens(address: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, _port(address))
    except OSError:
        return False
    writer.close()
    return True


async def _serve(arguments: argparse.Namespace) -> None:
    cluster = RocketMQ(
        controllers=arguments.controllers,
        replicas=arguments.replicas,
        has_rights=arguments.rights,
    )
    await cluster.start()
    try:
        told = {
            "nameserver": cluster.nameserver,
            "grpc_endpoint": cluster.grpc_endpoint,
            "remoting_endpoint": cluster.remoting_endpoint,
            "controllers": cluster.controllers,
            "brokers": cluster.brokers,
        }
        print(json.dumps(told), flush=True)  # noqa: T201 - a command's output
        await asyncio.Event().wait()
    finally:
        await cluster.stop()


def main() -> None:
    """Run one until Ctrl-C; a failure is one sentence and the end of the log."""
    parser = argparse.ArgumentParser(prog="python -m interop.rocketmq", description=__doc__)
    parser.add_argument("--controllers", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rights", action="store_true", help=f"user {USER}, secret {SECRET}")
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(_serve(parser.parse_args()))
        except InteropError as error:
            raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
