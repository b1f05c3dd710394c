"""Real processes that tell everything (log level debug): no secret is in what they tell."""

import os
import signal
import subprocess
from pathlib import Path

import aiohttp
import pytest
from tests.support.process.harness import RunningCluster, paceline_command, running_cluster
from tests.support.process.secrets import found_in, kept_secrets, message_logs, told_files

from paceline.admin.client import AdminClient
from paceline.consumer.pull import PullConsumer
from paceline.errors import LoginFailedError, NotAuthorizedError, UnauthenticatedError
from paceline.message import Message
from paceline.net.connect import ClientTls, ConnectSettings, Credentials
from paceline.producer.producer import Producer

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

WRONG = Credentials(access_key="pk" + "0" * 20, secret_key="sk_" + "5e" * 32)


async def test_no_secret_is_told_by_a_cluster_with_rights_and_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs, command lines and the launcher's words are searched when the cluster has ended."""
    for process in ("BROKER", "CONTROLLER"):
        monkeypatch.setenv(f"PACELINE_{process}_LOG_LEVEL", "debug")
    with running_cluster(tmp_path, "--tls") as cluster:
        tls = ClientTls(ca_file=str(cluster.data_dir / "tls" / "ca.pem"))
        async with AdminClient(ConnectSettings(cluster.bootstrap, tls=tls)) as admin:
            await admin.topics.create("orders", queues=1)
            await admin.users.create("root", is_super=True)
            key = await admin.users.add_key("root", name="the keeper")
            await admin.security.set("on")
        root = ConnectSettings(cluster.bootstrap, key, tls=tls)
        async with AdminClient(root) as admin, Producer(root) as producer:
            await admin.users.create("shop")
            shop = await admin.users.add_key("shop")
            signing = await admin.users.add_key("shop", signs=True)
            cluster.secrets.append(("a key that nodes can read", signing.secret_key.encode()))
            await producer.send(Message("orders", b"x"))
            with pytest.raises(UnauthenticatedError) as refused:
                async with Producer(ConnectSettings(cluster.bootstrap, WRONG, tls=tls)) as other:
                    await other.send(Message("orders", b"x"))
            await people_log_in(cluster, admin, tls)
            answers = [str(refused.value).encode(), *await strangers_say(cluster, key)]
            leader = await leading(admin)
            cluster.send_signal(leader, signal.SIGKILL)
            await admin.users.create("after")
            await admin.users.remove_key("shop", shop.access_key)
            async with PullConsumer(root) as reader:
                await reader.subscribe("orders", start="first")
                while not await reader.poll():
                    pass
            answers += by_command(cluster, key, tls)
        check_places(cluster)
        assert '"level":"debug"' in cluster.logs()
        shown = {f"answer {number}": each for number, each in enumerate(answers)}
        known = [*kept_secrets(cluster.data_dir), *cluster.secrets]
        assert found_in(shown, known) == []


async def people_log_in(cluster: RunningCluster, admin: AdminClient, tls: ClientTls) -> None:
    """With right and wrong passwords, and what they are given is shown to all kinds of node."""
    good, wrong = "correct horse battery", "wrong horse battery"
    await admin.users.set_password("shop", good)
    token = await admin.security.login("shop", good)
    cluster.secrets += [
        ("a password", good.encode()),
        ("a wrong password", wrong.encode()),
        ("a login", token.secret_key.encode()),
    ]
    with pytest.raises(LoginFailedError):
        await admin.security.login("shop", wrong)
    with pytest.raises(NotAuthorizedError):
        async with Producer(ConnectSettings(cluster.bootstrap, token, tls=tls)) as producer:
            await producer.send(Message("orders", b"x"))
    await admin.users.end_logins("shop")
    with pytest.raises(UnauthenticatedError):
        async with AdminClient(ConnectSettings(cluster.bootstrap, token, tls=tls)) as other:
            await other.users.all()


async def strangers_say(cluster: RunningCluster, key: Credentials) -> list[bytes]:
    """What nodes answer to requests that are wrong, and have a secret somewhere."""
    answers = []
    shown = f"Bearer {key.access_key}.{key.secret_key}"
    addresses = [node["address"] for node in cluster.nodes()]
    context = ClientTls(ca_file=str(cluster.data_dir / "tls" / "ca.pem")).context()
    async with aiohttp.ClientSession() as http:
        for address in addresses:
            for method, path, headers, body in (
                ("GET", "/v1/status", {"Authorization": shown[:-4]}, None),
                ("GET", "/v1/status", {"Authorization": f"Basic {key.secret_key}"}, None),
                ("GET", "/v1/nowhere", {"Authorization": shown}, None),
                ("POST", "/v1/call", {"Authorization": shown}, {"call": key.secret_key}),
                ("POST", "/v1/topics", {"Authorization": shown}, {"topic": "%"}),
                ("PUT", "/v1/users/shop/keys/k", {"Authorization": shown}, {"secret_key": "sk_"}),
            ):
                url = f"https://{address}{path}"
                async with http.request(
                    method, url, headers=headers, json=body, ssl=context
                ) as answer:
                    assert answer.status >= 400
                    answers.append(await answer.read())
    return answers


async def leading(admin: AdminClient) -> str:
    """The name of the controller that leads."""
    for status in (await admin.controllers.all()).values():
        if status is not None and status["role"] == "leader":
            return str(status["controller_id"])
    raise AssertionError("nobody leads")


def check_places(cluster: RunningCluster) -> None:
    """The files that are searched are there, and say something."""
    sizes = {name: len(content) for name, content in told_files(cluster.data_dir)}
    sizes |= {name: len(content) for name, content in message_logs(cluster.data_dir)}
    for node in cluster.nodes():
        is_broker = node["role"] == "broker"
        kinds = ("security.json", "log/") if is_broker else ("raft/journal", "audit/")
        for kind in kinds:
            found = [
                size for name, size in sizes.items() if name.startswith(f"{node['name']}/{kind}")
            ]
            assert any(found), (node["name"], kind, sorted(sizes))


COMMANDS = (
    ("whoami",),
    ("user", "list"),
    ("acl", "list", "shop"),
    ("acl", "explain", "shop", "Pub", "Topic:orders"),
    ("quota", "list"),
    ("security", "status"),
    ("cluster", "status"),
    ("topic", "describe", "orders"),
    ("topic", "describe", "nowhere"),
    ("audit", "search", "--limit", "1000"),
    ("user", "create", "shop"),
    ("user", "remove-key", "shop", "pk_of_nobody"),
)


def by_command(cluster: RunningCluster, key: Credentials, tls: ClientTls) -> list[bytes]:
    """What commands say that are given a key, and fail or not: as text, and as JSON."""
    said = []
    environment = {
        **os.environ,
        "PACELINE_BOOTSTRAP": ",".join(cluster.bootstrap),
        "PACELINE_ACCESS_KEY": key.access_key,
        "PACELINE_SECRET_KEY": key.secret_key,
        "PACELINE_TLS_CA": tls.ca_file,
    }
    for arguments in COMMANDS:
        for more in ((), ("--json",)):
            ended = subprocess.run(
                paceline_command(*arguments, *more),
                env=environment,
                capture_output=True,
                check=False,
            )
            assert b"Traceback" not in ended.stderr
            said += [ended.stdout, ended.stderr]
    return said
