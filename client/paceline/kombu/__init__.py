"""Celery and kombu on a cluster: a transport and a result backend (docs/features/celery.md)."""

from kombu.transport import TRANSPORT_ALIASES

from paceline.kombu.target import SCHEME
from paceline.kombu.transport import Transport

TRANSPORT_ALIASES.setdefault(SCHEME, f"{__name__}:Transport")
"""kombu has no entry points for transports: `paceline://` works once this module is imported."""

__all__ = ["Transport"]
