"""The operator of users and rights, who changes them at random while everybody works.

Users have topics and consumer groups of their own (`tenants`), one of them in a namespace. Their
policies, keys and status come and go, and rights are switched on, off, and on for trial. Whoever
shows no key may do everything but touch what is theirs, so that all other clients of a run go on.
Now and then the operator tries to take the last super user away, which must be refused (S44).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.admin.client import AdminClient
from paceline.admin.requests import AdminRequests
from paceline.errors import CommandRefusedError, PacelineError, TopicExistsError
from paceline.net.connect import Credentials
from paceline.platform.runtime import pause
from paceline.wire.calls.request import read_request
from paceline.wire.controller_calls.security import PutAccessKey
from paceline.wire.rights import SHARED_RESOURCES
from paceline.wire.topics import MIXED
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around
from paceline_chaos.history.recorder import Asking
from paceline_chaos.history.secured import MODE, REVOKE, ChangeRights

ROOT = "root"
ROOT_KEY = "key-of-root"
TENANTS: Mapping[str, tuple[str, ...]] = {
    "ann": ("ann-1", "ann-2"),
    "ben": ("ben-1", "ben-2"),
    "cat": ("cat%1", "cat%2"),
}
"""User -> its topics; those of the last are in a namespace."""
TENANT_TOPICS = tuple(topic for topics in TENANTS.values() for topic in topics)
QUEUES = 1
_PAUSE_MS_MIN, _PAUSE_MS_MAX = 100, 900
_ON = ("on",) * 4
_MODES = ("off", "dry-run", *_ON)
_STORM_MS, _REST_MS = 4_000, 9_000
"""Of an operator who rests: what was left behind in the storm must be over in the rest (L13)."""
_LOOK_MS = 200.0
_KEYS_KEPT = 6
"""Of each user; some of them are revoked, and whoever holds those must be refused."""
ADDRESSES = ("127.0.0.101", "127.0.0.102", "127.0.0.103")
_NEAR, _FAR = ADDRESSES[0], f"{ADDRESSES[1]}/31"
"""Where the first client of a world is, and the next two: the same user may more at one of them."""
_ACTS = ("mode", "policy", "policy", "policy", "key", "key", "status", "lock-out")


def group_of(user: str, name: str = "readers") -> str:
    """A consumer group of a tenant, or a group of its producers."""
    return f"{_own(user)}{name}"


def _own(user: str) -> str:
    """How all names of a tenant begin."""
    return TENANTS[user][0][:-1]


def credentials_of(access_key: str) -> Credentials:
    """An access key with its secret key, which hangs on its name here: a client that starts again
    still has it."""
    return Credentials(
        access_key=access_key, secret_key=f"secret-of-{access_key}-0123456789", allow_plaintext=True
    )


class RightsOperator:
    """See the module."""

    def __init__(
        self, around: Around, *, acts: Sequence[str] = _ACTS, is_resting: bool = False
    ) -> None:
        """`acts`: what it does, each as often as it stands there. `is_resting`: from time to time
        it gives back what it has taken, and changes nothing for a while."""
        self._chosen = acts
        self._is_resting = is_resting
        self._around = replace(around.apart("rights"), credentials=credentials_of(ROOT_KEY))
        self._keys_count = 0
        self._acts: Mapping[str, Callable[[AdminClient, AdminRequests, str], Awaitable[object]]] = {
            "mode": self._set_mode,
            "policy": self._put_policy,
            "key": self._change_key,
            "status": self._set_status,
            "lock-out": self._lock_out,
        }

    async def run(self) -> None:
        """Until it is over; rights stay as the last change has left them."""
        around = self._around
        cluster = around.cluster()
        requests = AdminRequests(cluster, timeout_ms=CALL_TIMEOUT_MS)
        cluster.start()
        try:
            async with AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS) as admin:
                for step in self._beginning(admin, requests):
                    await around.try_again(step)
                while not around.is_over():
                    await self._change_for_a_while(admin, requests)
                    await self._rest(admin, requests)
        finally:
            await cluster.close()

    async def _change_for_a_while(self, admin: AdminClient, requests: AdminRequests) -> None:
        around = self._around
        end_ms = around.clock.monotonic_ms() + _STORM_MS
        while not around.is_over() and around.clock.monotonic_ms() < end_ms:
            await self._act(admin, requests)
            await pause(around.random.uniform(_PAUSE_MS_MIN, _PAUSE_MS_MAX))

    async def _rest(self, admin: AdminClient, requests: AdminRequests) -> None:
        around = self._around
        if not self._is_resting:
            return
        for user in TENANTS:
            await around.try_again(partial(self._put_policy, admin, requests, user, number=0))
            await around.try_again(partial(admin.users.alter, user, is_enabled=True))
            await around.try_again(partial(self._add_key, requests, user))
        await around.try_again(partial(self._switch, admin, "on"))
        end_ms = around.clock.monotonic_ms() + _REST_MS
        while not around.is_over() and around.clock.monotonic_ms() < end_ms:
            await pause(_LOOK_MS)

    async def _act(self, admin: AdminClient, requests: AdminRequests) -> None:
        around = self._around
        act = self._acts[around.choice(self._chosen)]
        with suppress(PacelineError):  # refused, or nobody knows: the next one comes
            await act(admin, requests, around.choice(sorted(TENANTS)))

    # -- what there is from the beginning ----------------------------------------------------------

    def _beginning(
        self, admin: AdminClient, requests: AdminRequests
    ) -> Sequence[Callable[[], Awaitable[object]]]:
        """Each may be done already, by an earlier life."""
        return [
            partial(make_user, admin, ROOT, is_super=True),
            partial(give_key, requests, ROOT, ROOT_KEY),
            partial(admin.policies.put, "anonymous", custom=_of_anonymous()),
            *(partial(make_user, admin, user) for user in TENANTS),
            *(partial(self._put_policy, admin, requests, user, number=0) for user in TENANTS),
            *(partial(self._add_key, requests, user) for user in TENANTS),
            *(partial(_make_topic, admin, topic) for topic in TENANT_TOPICS),
            partial(self._switch, admin, "on"),
        ]

    # -- changes -----------------------------------------------------------------------------------

    async def _set_mode(self, admin: AdminClient, requests: AdminRequests, user: str) -> None:
        await self._switch(admin, self._around.choice(_MODES))

    async def _switch(self, admin: AdminClient, mode: str) -> None:
        with self._changing(MODE, mode) as asking:
            await admin.security.set(mode)
            asking.ok()

    def _changing(self, what: str, name: str) -> Asking[ChangeRights]:
        around = self._around
        return around.recorder.asking(ChangeRights, client=around.client, what=what, name=name)

    async def _put_policy(
        self, admin: AdminClient, requests: AdminRequests, user: str, number: int | None = None
    ) -> None:
        around = self._around
        policies = _policies_of(user)
        chosen = around.choice(policies) if number is None else policies[number]
        await admin.policies.put(user, **chosen)

    async def _change_key(self, admin: AdminClient, requests: AdminRequests, user: str) -> None:
        """Another one first, or the old one away first: for a while the user has none."""
        keys = self._around.keys.get(user, [])
        is_new_first = self._around.happens(0.5)
        if is_new_first:
            await self._add_key(requests, user)
        for key in keys[:-1] if is_new_first else list(keys):
            with suppress(PacelineError), self._changing(REVOKE, key) as asking:
                await admin.users.remove_key(user, key)
                asking.ok()
        if not is_new_first:
            await pause(self._around.random.uniform(0, _PAUSE_MS_MAX))
            await self._add_key(requests, user)

    async def _add_key(self, requests: AdminRequests, user: str) -> None:
        """Given out once the cluster knows it, as far as anybody knows."""
        self._keys_count += 1
        name = f"key-of-{user}-{self._around.life}-{self._keys_count}"
        await give_key(requests, user, name)
        keys = self._around.keys.setdefault(user, [])
        keys.append(name)
        del keys[:-_KEYS_KEPT]

    async def _set_status(self, admin: AdminClient, requests: AdminRequests, user: str) -> None:
        await admin.users.alter(user, is_enabled=False)
        await pause(self._around.random.uniform(0, _PAUSE_MS_MAX))
        await admin.users.alter(user, is_enabled=True)

    async def _lock_out(self, admin: AdminClient, requests: AdminRequests, user: str) -> None:
        """The last super user is disabled, loses its key, or is no super user any more: where
        rights are on, that must be refused, and where they are off, it is given back."""
        await self._around.choice(
            (
                partial(admin.users.alter, ROOT, is_enabled=False),
                partial(admin.users.alter, ROOT, is_super=False),
                partial(admin.users.remove_key, ROOT, ROOT_KEY),
            )
        )()
        await self._around.try_again(partial(_make_root_again, admin, requests))


def key_operator(around: Around) -> RightsOperator:
    """One who changes access keys all the time and nothing else: rights stay on."""
    return RightsOperator(around, acts=("key",))


def resting_operator(around: Around) -> RightsOperator:
    """One who changes everything for a while, and then nothing for a while."""
    return RightsOperator(around, is_resting=True)


async def _make_root_again(admin: AdminClient, requests: AdminRequests) -> None:
    await admin.users.alter(ROOT, is_super=True, is_enabled=True)
    await give_key(requests, ROOT, ROOT_KEY)


async def give_key(requests: AdminRequests, user: str, access_key: str) -> None:
    """Give a user the access key of that name, which may also sign."""
    secret_key = credentials_of(access_key).secret_key
    fields = {"user": user, "access_key": access_key, "secret_key": secret_key, "signs": True}
    await requests.once(read_request(PutAccessKey, fields))


async def make_user(admin: AdminClient, user: str, *, is_super: bool = False) -> None:
    """Unless there is one."""
    with suppress(CommandRefusedError):  # made in an earlier life
        await admin.users.create(user, is_super=is_super)


async def _make_topic(admin: AdminClient, topic: str) -> None:
    with suppress(TopicExistsError):  # as above
        await admin.topics.create(topic, queues=QUEUES, message_type=MIXED)


def _entry(
    resource: str, *actions: str, decision: str = "Allow", sources: Sequence[str] = ()
) -> dict[str, Any]:
    return {
        "resource": resource,
        "actions": list(actions),
        "sources": list(sources),
        "decision": decision,
    }


def everything() -> list[dict[str, Any]]:
    """All rights; what holds messages of many topics has to be named."""
    shared = sorted(str(resource) for resource in SHARED_RESOURCES)
    return [_entry(resource, "All") for resource in ("*", *shared)]


def _of_anonymous() -> list[dict[str, Any]]:
    """Everything but what tenants have."""
    theirs = [f"{kind}:{_own(user)}*" for kind in ("Topic", "Group") for user in TENANTS]
    return [
        *everything(),
        *(_entry(resource, "All", decision="Deny") for resource in theirs),
    ]


def _policies_of(user: str) -> list[dict[str, Any]]:
    """What a tenant may have, as `Policies.put` takes it; the first gives all that it uses."""
    first, second = (f"Topic:{name}" for name in TENANTS[user])
    topics, all_groups = f"Topic:{_own(user)}*", f"Group:{_own(user)}*"
    groups = _entry(all_groups, "Sub")
    usual = _entry(topics, "Pub", "Sub")
    if _own(user) == f"{user}%":  # the namespace stands for both
        groups, usual = (_entry(f"Namespace:{user}", *acts) for acts in (("Sub",), ("Pub", "Sub")))
    return [
        {"custom": [usual, groups]},
        {"custom": [_entry(topics, "All"), _entry(all_groups, "All")]},
        {"custom": [usual, groups, _entry(first, "Pub", decision="Deny")]},
        {"custom": [_entry(topics, "Pub", "Sub", decision="Deny"), _entry(first, "Pub", "Sub"),
                    groups]},
        {"custom": [usual, _entry(topics, "Pub", decision="Deny"), groups]},
        {"custom": [_entry(topics, "Pub", "Sub", sources=[_NEAR]), groups]},
        {"custom": [usual, groups, _entry(topics, "All", decision="Deny", sources=[_FAR])]},
        {"custom": [_entry(second, "Pub", decision="Deny")], "default": [usual, groups]},
        {"custom": [_entry(topics, "Pub", "Sub")]},
        {"custom": [usual, groups, _entry(all_groups, "Sub", decision="Deny")]},
        {"custom": []},
    ]  # fmt: skip
