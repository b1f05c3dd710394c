"""Who finds out who the clients of a door in the test's process are."""

from paceline.platform.runtime import SystemClock
from paceline.security.access import Access
from paceline_gateway.identity import Authenticator


def an_authenticator(kind: type[Authenticator] = Authenticator) -> Authenticator:
    """Rights are off: everybody is anonymous, unless the kind says something else."""
    return kind(Access(SystemClock()), clock=SystemClock(), allow_plaintext=False)
