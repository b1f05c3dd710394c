"""Every route of a controller for every kind of asker; users and rights as requests change them."""

import asyncio
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from tests.support.askers import proof_of
from tests.support.audit import on_disk
from tests.support.controller.harness import Controllers, controllers
from tests.support.controller.secured import secure, secured
from tests.support.controller.sessions import a_cluster
from tests.support.delegations import delegated
from tests.support.requests import ask_least
from tests.support.rights import SECRETS, a_security, bearer, entry

from paceline.types import TopicName
from paceline.wire.calls.request import Request
from paceline.wire.controller_calls.security import ChangePassword, Login
from paceline.wire.controller_calls.table import CALLS
from paceline.wire.names import AUDIT_TOPIC
from paceline.wire.rights import ANYBODY, CREATE, KNOWN_USER, SUB, Needs
from paceline.wire.users import Mode, Quota, Security
from paceline_controller.server.openapi import OTHERS

ROUTES: list[tuple[str, str, Needs, type[Request[Any]] | None]] = [
    *((each.method, each.path, each.needs, None) for each in OTHERS),
    *(
        (route.method, route.path, call.needs or (), call)
        for call in CALLS.values()
        for route in call.routes
    ),
]
ANSWER_S = 1.0


async def asked(
    cluster: Controllers,
    method: str,
    path: str,
    call: type[Request[Any]] | None,
    headers: dict[str, str],
) -> tuple[int, str]:
    base = f"http://{cluster.addresses[0]}"
    return await ask_least(
        cluster.http, method, base, path, call, headers=headers, within_s=ANSWER_S
    )


@pytest.mark.parametrize(
    ("method", "path", "needs", "call"), ROUTES, ids=[f"{each[0]} {each[1]}" for each in ROUTES]
)
async def test_each_route_is_for_whom_it_says(
    method: str, path: str, needs: Needs, call: type[Request[Any]] | None
) -> None:
    assert call is None or call.needs is not None, "a request that declares no rights"
    async with secured() as cluster:
        nobody, _ = await asked(cluster, method, path, call, {})
        unknown, _ = await asked(cluster, method, path, call, {"Authorization": "Bearer a.b"})
        bob, code = await asked(cluster, method, path, call, bearer("bob"))
        root, of_root = await asked(cluster, method, path, call, bearer("root"))

    assert unknown == 401
    if "LOGIN_FAILED" in (code, of_root):  # a slow machine may answer only the second in time
        assert call in (Login, ChangePassword), "they are for whoever has a password"
        return
    assert (nobody == 401) is (needs != ANYBODY)
    is_for_nodes = path == "/v1/security/watch"
    if is_for_nodes:
        assert (nobody, bob) == (401, 403)
    elif needs in (ANYBODY, KNOWN_USER):
        assert bob not in (401, 403)
    else:
        assert (bob, code) == (403, "NOT_AUTHORIZED")
    assert (root in (401, 403)) is is_for_nodes


async def test_a_policy_for_a_source_that_nobody_comes_from_is_refused() -> None:
    entry = {"resource": "Topic:a", "actions": ["Pub"], "sources": ["::ffff:10.1.0.0/16"]}
    async with secured(1) as cluster:
        status, problem = await cluster.ask(
            "PUT", "/v1/users/ana/policy", {"custom": [entry]}, headers=bearer("root")
        )

    assert (status, problem["code"], problem["field"]) == (400, "BAD_REQUEST", "sources")


async def test_a_follower_relays_whoever_asks_with_the_address_he_comes_from() -> None:
    here = entry("Topic:near", CREATE, sources=("127.0.0.1",))
    far = entry("Topic:far", CREATE, sources=("10.0.0.0/8",))
    async with secured(3, ana=(here, far)) as cluster:
        document = {"topic": "near", "queues": {"g1": 1}}
        near = await cluster.ask("POST", "/v1/topics", document, node=1, headers=bearer("ana"))
        away = await cluster.ask(
            "POST", "/v1/topics", {"topic": "far"}, node=1, headers=bearer("ana")
        )
        nobody = await cluster.ask("POST", "/v1/topics", document, node=1)
        # Whoever is no node cannot say where he comes from.
        lie = {**bearer("ana"), "Paceline-Source": "10.0.0.1", "Paceline-Node": "c1 00 00"}
        lying = [
            await cluster.ask("POST", "/v1/topics", {"topic": "far"}, node=node, headers=lie)
            for node in (0, 1)
        ]

    assert near[1]["code"] == "GROUP_NOT_FOUND", "it was let in"
    assert (away[0], away[1]["code"]) == (403, "NOT_AUTHORIZED")
    assert nobody[0] == 401
    assert [status for status, _ in lying] == [403, 421], "what a node says is never relayed"


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
async def test_a_header_that_is_no_text_is_refused_or_passed_over(is_on: bool) -> None:
    """Relayed too, where rights are off and nobody looks at it."""
    async with controllers(2) as cluster:
        if is_on:
            for node in cluster.nodes.values():
                node.access.apply(a_security())
        for address in cluster.addresses:
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(
                b"DELETE /v1/topics/orders HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                b"Authorization: Bearer \xff\xfe.\xff\r\n\r\n"
            )
            status = (await reader.read()).split(b" ", 2)[1]
            writer.close()
            assert status == (b"401" if is_on else b"404")


@pytest.mark.parametrize("target", ["/v1/topics/t#x", "http://x/v1/topics/t", "*"])
async def test_a_target_that_no_relay_could_name_is_refused(target: str) -> None:
    """It reached the leader without its proof, so that the follower's address counted."""
    async with secured(2) as cluster:
        for address in cluster.addresses:
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(
                b"DELETE %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % target.encode()
            )
            answer = await reader.read()
            writer.close()
            assert answer.split(b" ", 2)[1] in (b"400", b"404"), answer


async def test_whoever_relays_names_the_user_of_the_certificate_it_has_seen() -> None:
    async with secured(ana=(entry("Topic:orders", CREATE),)) as cluster:
        proofs = cluster.leader.proofs
        body = orjson.dumps({"topic": "orders", "queues": {"g1": 1}})
        told = {}
        for source in ("10.0.0.1 ana", "10.0.0.1 eve", "10.0.0.1"):
            headers = proof_of(
                proofs, "POST", "/v1/topics", body, address=str(cluster.addresses[0]), source=source
            )
            answer = await cluster.ask("POST", "/v1/topics", data=body, headers=headers)
            told[source] = answer[1]["code"]
        own = proof_of(proofs, "POST", "/v1/topics", body, address=str(cluster.addresses[0]))
        forged = {**own, "Paceline-Source": "10.0.0.1 ana"}
        assert (await cluster.ask("POST", "/v1/topics", data=body, headers=forged))[0] == 401

    assert told == {
        "10.0.0.1 ana": "GROUP_NOT_FOUND",
        "10.0.0.1 eve": "UNAUTHENTICATED",
        "10.0.0.1": "UNAUTHENTICATED",
    }


async def test_users_are_made_with_keys_and_policies_and_do_what_those_say() -> None:
    async with controllers() as cluster:

        async def put(path: str, document: dict[str, Any], who: str = "") -> tuple[int, Any]:
            return await cluster.ask("PUT", path, document, headers=bearer(who) if who else {})

        assert (await put("/v1/security", {"mode": "on"}))[1]["reason"] == "NO_SUPER_USER"
        for user, type_ in (("root", "Super"), ("ana", "Normal")):
            assert (await put(f"/v1/users/{user}", {"type": type_, "new": True}))[0] == 200
            key = {"secret_key": SECRETS[user], "name": "test"}
            assert (await put(f"/v1/users/{user}/keys/key-{user}", key))[0] == 200
        custom = [{"resource": "Topic:t*", "actions": ["Create", "Sub"]}]
        assert (await put("/v1/users/ana/policy", {"custom": custom, "revision": 0}))[0] == 200
        assert (await put("/v1/security", {"mode": "on"}))[0] == 200

        ana, root = bearer("ana"), bearer("root")
        made = await cluster.ask("POST", "/v1/topics", {"topic": "x"}, headers=ana)
        assert (made[0], made[1]["resource"]) == (403, "Topic:x")
        assert (await put("/v1/users/eve", {"new": True}, "ana"))[0] == 403
        again = {"custom": [], "revision": 0}
        assert (await put("/v1/users/ana/policy", again, "root"))[1]["reason"] == "STALE_REVISION"
        listed = (await cluster.ask("GET", "/v1/users", headers=root))[1]["users"]
        assert [row["user"] for row in listed] == ["ana", "root"]
        assert SECRETS["ana"] not in str(listed)
        assert "digest" not in str(listed)
        path = "/v1/users/ana/explain?action=Sub&resource="
        why = (await cluster.ask("GET", path + "Topic:t1", headers=root))[1]
        assert why["is_allowed"]
        assert why["entry"]["resource"] == "Topic:t*"
        assert (await cluster.ask("GET", path + "Topic:t*", headers=root))[0] == 400
        who = (await cluster.ask("GET", "/v1/whoami", headers=ana))[1]
        assert (who["user"], who["type"], who["mode"]) == ("ana", "Normal", "on")
        gone = await cluster.ask("DELETE", "/v1/users/ana/keys/key-ana", headers=root)
        assert gone[0] == 200
        assert (await cluster.ask("GET", "/v1/whoami", headers=ana))[0] == 401
        assert (await cluster.ask("DELETE", "/v1/users/eve", headers=root))[1]["code"] == (
            "USER_NOT_FOUND"
        )


async def test_changes_are_told_with_who_asked_and_what_came_of_it() -> None:
    async with secured(2) as cluster:
        key = {"secret_key": SECRETS["bob"], "name": "till"}
        named = {**bearer("root"), "X-Request-Id": "change-1"}
        for headers, path, body in (
            (named, "/v1/users/eve", {"new": True}),
            (bearer("bob"), "/v1/users/mallory", {"new": True}),
            (bearer("root"), "/v1/users/eve/keys/key-eve", key),
        ):
            await cluster.ask("PUT", path, body, node=1, headers=headers)
        await cluster.ask("GET", "/v1/users", headers=bearer("root"))
        off = await cluster.ask("PUT", "/v1/security", {"mode": "off"}, headers=bearer("root"))
        await cluster.ask("DELETE", "/v1/topics/orders")

    assert off[0] == 200
    told = on_disk(cluster.disks[cluster.ids[0]], "unused/audit")
    assert [(row.user, row.call, row.about, row.decision, row.outcome) for row in told] == [
        ("root", "put_user", "user=eve", "Allow", "OK"),
        ("bob", "put_user", "user=mallory", "Deny", "NOT_AUTHORIZED"),
        ("root", "put_access_key", "user=eve access_key=key-eve", "Allow", "OK"),
        ("root", "set_security_mode", "mode=off", "Allow", "OK"),
    ], "reads are not told, nor what is asked while rights are off"
    assert (told[0].source, told[0].access_key) == ("127.0.0.1", "key-root")
    assert (told[0].action, told[0].resource) == ("Update", "Cluster:paceline")
    assert (told[0].rule, told[1].rule) == ("root is a super user", "no policy of bob matches")
    assert told[0].request_id == "change-1", "a follower passes it on"
    assert len({row.request_id for row in told}) == 4
    assert SECRETS["bob"] not in str(told)
    assert on_disk(cluster.disks[cluster.ids[1]], "unused/audit") == [], "it only relays"


async def test_the_call_that_switches_rights_on_is_the_first_that_is_told() -> None:
    async with controllers() as cluster:
        await cluster.ask("PUT", "/v1/users/root", {"type": "Super", "new": True})
        await cluster.ask("PUT", "/v1/users/root/keys/key-root", {"secret_key": SECRETS["root"]})
        await cluster.ask("PUT", "/v1/security", {"mode": "on"})
        topics = cluster.leader.machine.topics

    [told] = on_disk(cluster.disks[cluster.ids[0]], "unused/audit")
    assert (told.user, told.call, told.rule) == (
        *("anonymous", "set_security_mode"),
        "rights were off",
    )
    assert topics[TopicName(AUDIT_TOPIC)].is_system


async def test_nobody_takes_the_topic_of_the_audit_away() -> None:
    """Else records would wait for it on the nodes, and go when their files are full."""
    async with controllers() as cluster:
        await cluster.ask("PUT", "/v1/users/root", {"type": "Super", "new": True})
        await cluster.ask("PUT", "/v1/users/root/keys/key-root", {"secret_key": SECRETS["root"]})
        await cluster.ask("PUT", "/v1/security", {"mode": "on"})
        path = "/v1/topics/" + quote(AUDIT_TOPIC, safe="")
        gone = await cluster.ask("DELETE", path, headers=bearer("root"))
        changed = await cluster.ask("PUT", path, {"queues": {"g1": 0}}, headers=bearer("root"))

        assert [answer["code"] for _, answer in (gone, changed)] == ["FORBIDDEN"] * 2
        assert TopicName(AUDIT_TOPIC) in cluster.leader.machine.topics


async def test_an_answer_names_the_request_while_rights_are_on() -> None:
    async with controllers() as cluster:
        url = f"http://{cluster.addresses[0]}/healthz"
        async with cluster.http.get(url) as answer:
            assert "X-Request-Id" not in answer.headers
        secure(cluster)
        for given, kept in (("mine", True), ("x" * 65, False)):
            async with cluster.http.get(url, headers={"X-Request-Id": given}) as answer:
                assert (answer.headers["X-Request-Id"] == given) is kept


async def test_views_show_what_one_may_see() -> None:
    async with a_cluster(1) as (cluster, _):
        await cluster.ask("POST", "/v1/topics", {"topic": "secret", "queues": {"g1": 1}})
        secure(cluster)
        for path in ("/v1/routes", "/v1/watch?from=-1"):
            views = [
                (await cluster.ask("GET", path, headers=bearer(who)))[1] for who in ("root", "bob")
            ]
            assert ["secret" in orjson.dumps(view).decode() for view in views] == [True, False], (
                path
            )


async def test_who_names_a_topic_that_it_may_not_see_is_shown_none() -> None:
    async with a_cluster(1) as (cluster, _):
        secure(cluster, ana=(entry("Topic:orders", SUB),))
        before = cluster.leader.machine.version
        for topic in ("secret", "orders", "other"):
            await cluster.ask("POST", "/v1/topics", {"topic": topic}, headers=bearer("root"))
        query = "topics=secret,orders"

        for path in (f"/v1/watch?{query}", f"/v1/watch?from={before}&changes=true&{query}"):
            shown = {}
            for who in ("root", "ana"):
                _, view = await cluster.ask("GET", path, headers=bearer(who))
                shown[who] = [row["topic"] for row in view["topics"]]
            assert shown == {"root": ["orders", "secret"], "ana": ["orders"]}, path


async def test_changes_show_what_one_may_see_and_rights_begin_anew() -> None:
    async with a_cluster(1) as (cluster, _):
        secure(cluster, ana=(entry("Topic:orders", SUB),))
        machine, root = cluster.leader.machine, bearer("root")

        async def told(since: int) -> tuple[dict[str, Any], dict[str, Any]]:
            """What each of both hears that has the view of that version."""
            path = f"/v1/watch?from={since}&changes=true"
            answers = [
                await cluster.ask("GET", path, headers=bearer(who)) for who in ("root", "ana")
            ]
            return answers[0][1], answers[1][1]

        for topic in ("secret", "orders"):
            since = machine.version
            await cluster.ask("POST", "/v1/topics", {"topic": topic}, headers=root)
            of_root, of_ana = await told(since)
            assert [row["topic"] for row in of_root["topics"]] == [topic]
            assert [row["topic"] for row in of_ana["topics"]] == [topic] * (topic == "orders")
            assert of_ana["since"] == since
        since = machine.version
        await cluster.ask("DELETE", "/v1/topics/secret", headers=root)
        of_root, of_ana = await told(since)
        assert (of_root["gone"]["topics"], of_ana["gone"]["topics"]) == (["secret"], [])

        since = machine.version
        await cluster.ask("PUT", "/v1/users/x", {"new": True}, headers=root)
        of_root, of_ana = await told(since)

    assert of_root["version"] == of_ana["version"] == since + 1
    assert "since" in of_root
    assert "since" not in of_ana


async def test_a_view_is_made_once_for_a_user_and_a_version() -> None:
    async with secured(ana=(entry("Topic:orders", SUB),)) as cluster:
        views = cluster.leader.http._views
        bodies = []
        for _ in range(2):
            await cluster.ask("GET", "/v1/routes", headers=bearer("ana"))
            bodies.append(list(views._kept.values()))

    assert len(bodies[0]) == len(bodies[1]) == 1
    assert bodies[0][0] is bodies[1][0]


async def test_a_watch_that_waited_is_judged_by_the_rights_of_its_end() -> None:
    async with secured(ana=(entry("Topic:orders", SUB),)) as cluster:
        version = cluster.leader.machine.version
        path = f"/v1/watch?from={version}&wait_ms=20000"
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(cluster.ask("GET", path, headers=bearer("ana")))
            while not len(cluster.leader.http.watches):
                await cluster.ask("GET", "/healthz")
            cluster.leader.access.apply(a_security(version=2, mode=Mode.ON).changed(users={}))
            cluster.leader.http.watches.wake()
            await cluster.ask("PUT", "/v1/users/x", {"new": True})
            cluster.leader.sessions.is_closing = True
            cluster.leader.http.watches.wake()

    assert watching.result()[0] == 401


async def test_a_controller_that_has_not_caught_up_lets_nobody_in_but_nodes() -> None:
    """It may have lost its journal, and would take rights for switched off."""
    async with controllers() as cluster:
        node = cluster.leader
        node.access.apply(a_security())
        node.access._security = Security()  # what a lost disk knows
        node._has_caught_up = False
        status, caught_up = node.quorum.status, False
        node.quorum.status = lambda: replace(status(), has_caught_up=caught_up)  # type: ignore[method-assign]
        routes = [each for each in ROUTES if each[2] != ANYBODY]
        for method, path, _, call in routes:
            told = await asked(cluster, method, path, call, bearer("root"))
            assert told == (503, "NOT_YET_AVAILABLE"), path
        assert (await cluster.ask("GET", "/healthz"))[0] == 200
        proof = proof_of(node.proofs, "GET", "/v1/status", address=str(cluster.addresses[0]))
        assert (await cluster.ask("GET", "/v1/status", headers=proof))[0] == 200

        caught_up = True
        assert (await cluster.ask("GET", "/v1/topics"))[0] == 200


async def test_a_key_that_a_starting_controller_does_not_know_yet_is_not_called_wrong() -> None:
    async with secured() as cluster:
        node = cluster.leader
        status = node.quorum.status
        node.quorum.status = lambda: replace(status(), has_caught_up=False)  # type: ignore[method-assign]
        node._has_caught_up = False

        newer = {"Authorization": "Bearer key-new.sk_secret-of-a-newer-user"}
        answer = await cluster.ask("GET", "/v1/topics", headers=newer)

    assert (answer[0], answer[1]["code"]) == (503, "NOT_YET_AVAILABLE")


@pytest.mark.parametrize("mode", ["off", "dry-run"])
async def test_rights_stay_on_where_other_machines_reach_a_controller(mode: str) -> None:
    async with secured() as cluster:
        for node in cluster.nodes.values():
            node.access.is_closed = True
        root = bearer("root")
        opened = await cluster.ask("PUT", "/v1/security", {"mode": mode}, headers=root)
        kept = await cluster.ask("PUT", "/v1/security", {"mode": "on"}, headers=root)

    assert (opened[0], opened[1]["code"]) == (403, "FORBIDDEN")
    assert "insecure = true" in opened[1]["detail"]
    assert kept[0] == 200


async def test_what_a_user_makes_counts_at_the_leader_whoever_was_asked() -> None:
    async with secured(2, ana=(entry("Topic:*", CREATE), entry("Group:*", CREATE))) as cluster:
        for node in cluster.nodes.values():
            security = node.machine.security
            quotas = {"User:ana": Quota(creations_per_hour=2, connections=1)}
            node.machine._state.security = security.changed(quotas=quotas)
            node.access.apply(node.machine.security)
        answers = [
            await cluster.ask(
                "POST", "/v1/consumer-groups", {"group": f"g{n}"}, node=n % 2, headers=bearer("ana")
            )
            for n in range(3)
        ]
        counts = [node.access.quotas.throttled() for node in cluster.nodes.values()]
        free, _ = await cluster.ask(
            "POST", "/v1/consumer-groups", {"group": "free"}, headers=bearer("root")
        )

    assert [status for status, _ in answers[:2]] == [201, 201], answers
    status, problem = answers[2]
    assert (status, problem["code"]) == (429, "QUOTA_EXCEEDED")
    assert 0 < problem["retry_after_ms"] <= 1_800_000
    assert {("ana", "creations"): 1} in counts
    assert free == 201


async def test_whoever_relays_for_a_gateway_has_looked_whom_it_is_for() -> None:
    """The leader goes by the user's address, not by that of the gateway."""
    near = entry("Topic:near", CREATE, sources=("10.0.0.0/8",))
    async with secured(3, ana=(near,)) as cluster:
        secret = cluster.nodes[cluster.ids[0]].secrets()[0]
        document = {"topic": "near", "queues": {"g1": 1}}
        told = {}
        for node in (0, 1):
            for source in ("10.0.0.1", "127.0.0.1"):
                shown = delegated(
                    "ana", source=source, address=str(cluster.addresses[node]), secret=secret
                )
                answer = await cluster.ask("POST", "/v1/topics", document, node=node, headers=shown)
                told[node, source] = answer[1]["code"]
        stray = delegated("ana", address=str(cluster.addresses[0]), secret=secret)
        strayed = await cluster.ask("POST", "/v1/topics", document, node=1, headers=stray)

    assert told == {
        (node, source): code
        for node in (0, 1)
        for source, code in (("10.0.0.1", "GROUP_NOT_FOUND"), ("127.0.0.1", "NOT_AUTHORIZED"))
    }
    assert strayed[0] == 401
