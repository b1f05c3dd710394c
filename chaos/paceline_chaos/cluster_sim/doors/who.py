"""Whom a gateway takes its clients for, and what it shows nodes on their behalf.

Where the cluster's secret is at hand it is the product's own: users and rights as controllers tell
them, signatures, delegations. Elsewhere everybody is anonymous, and shows what the world's client
shows.
"""

from typing import Any

from paceline.errors import UnauthenticatedError
from paceline.net.connect import Shown
from paceline.platform.secret import ClusterSecrets
from paceline.security.access import Access
from paceline.security.identity import Principal
from paceline.security.node_proof import NodeProofs
from paceline.security.node_tls import Dial
from paceline.security.tokens import Tokens
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_gateway.identity import Authenticator, ToldSecurity
from paceline_gateway.on_behalf import OnBehalf


class GatewayRefusesError(UnauthenticatedError):
    """A gateway does not take a client for the user whom it shows, or a node not a gateway for one.

    It may be because the gateway is late, or its clock is wrong: nodes have not decided.
    """

    code = "UNAUTHENTICATED_BY_GATEWAY"


class _DoorAuthenticator(Authenticator):
    """The product's, whose refusals have a code of their own."""

    def _found(self, *of: Any, **named: Any) -> Principal:
        try:
            return super()._found(*of, **named)
        except UnauthenticatedError as error:
            raise GatewayRefusesError(error.message) from error


class Who:
    """Of one life of one gateway."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._told: ToldSecurity | None = None
        secrets = around.secrets
        if secrets is None:
            self._access = Access(around.clock)  # rights are off: everybody is anonymous
        else:
            self._access = Access(
                around.clock,
                tokens=Tokens(lambda: secrets.all),
                is_current=lambda: self._told is not None and self._told.known.is_set(),
            )
            self._told = _told(around, secrets, self._access)
        self.authenticator: Authenticator = _DoorAuthenticator(
            self._access, clock=around.clock, allow_plaintext=True
        )

    async def run(self) -> None:
        """Be told of users and rights, until cancelled."""
        if self._told is not None:
            await self._told.run()

    def shown(self, principal: Principal) -> Shown | None:
        """What is shown to nodes for one of its users."""
        secrets = self._around.secrets
        if secrets is None:
            return self._around.credentials
        return OnBehalf(
            principal,
            secrets,
            cluster_id=lambda: self._access.security.cluster_id,
            clock=self._around.clock,
            allow_plaintext=True,
        )


def _told(around: Around, secrets: ClusterSecrets, access: Access) -> ToldSecurity:
    proofs = NodeProofs(
        secrets,
        node_id=f"gateway-of-{around.client}",
        addresses=lambda: (),
        clock=around.clock,
        random=around.random,
    )
    return ToldSecurity(
        access,
        controllers=around.bootstrap,
        proofs=proofs,
        dial=Dial(source_host=around.source_host),
        random=around.random,
        source_host=around.source_host,
    )
