"""The remoting door of a gateway process, wired."""

import asyncio
from collections.abc import Collection

from paceline.errors import ConfigError
from paceline.security.certificates import CLIENT_URI, uris_of
from paceline_gateway.doors import DoorContext
from paceline_gateway.remoting.server import RemotingDoor


def open_door(context: DoorContext) -> RemotingDoor:
    """Not listening yet. ConfigError: the settings name no address."""
    config = context.config
    if config.remoting_listen is None:
        raise ConfigError("remoting_listen is not set")
    return RemotingDoor(
        context.clusters,
        context.authenticator,
        context.cluster,
        context.clients,
        host=config.remoting_listen.host,
        port=config.remoting_listen.port,
        tls=context.tls,
        advertised_host=config.advertised_host,
        budget=context.budget,
        describe_tls=_describe_tls,
        connections_max=config.connections_max,
        on_refused=context.on_refused,
    )


def _describe_tls(transport: asyncio.BaseTransport) -> tuple[bool, Collection[str]]:
    certificate = transport.get_extra_info("peercert")
    is_encrypted = transport.get_extra_info("sslcontext") is not None
    return is_encrypted, uris_of(certificate, CLIENT_URI) if certificate else ()
