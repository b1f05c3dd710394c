"""Pure: secret keys that nodes can read back, encrypted with a key of the cluster.

Protocols that sign requests need the secret key itself at the server; its digest does not do. Such
a key is kept encrypted (AES-256-GCM), with a key that is derived from the cluster secret, so no
replicated state and no disk has it in clear. When the cluster secret is rotated, what is sealed
says which one it needs, until it is sealed anew.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from paceline.platform.ports import Random

_LABEL, _ID_LABEL = b"paceline sealed key 1", b"paceline sealed key id 1"
_NONCE_BYTES, _ID_LENGTH = 12, 16


def seal_key(
    secret_key: str, *, access_key: str, cluster_id: str, secrets: Sequence[bytes], random: Random
) -> str:
    """The secret key, to be kept: "ID:CONTENT", for the first of the cluster secrets."""
    secret, nonce = secrets[0], random.token(_NONCE_BYTES)
    about = f"{cluster_id}/{access_key}".encode()
    content = nonce + AESGCM(_key(secret)).encrypt(nonce, secret_key.encode(), about)
    return f"{_id(secret)}:{base64.b64encode(content).decode()}"


def open_key(
    sealed: str, *, access_key: str, cluster_id: str, secrets: Sequence[bytes]
) -> str | None:
    """The secret key; None: no cluster secret opens it, or it is another access key's."""
    name, _, content = sealed.partition(":")
    about = f"{cluster_id}/{access_key}".encode()
    try:
        raw = base64.b64decode(content, validate=True)
        for secret in secrets:
            if _id(secret) == name:
                cipher = AESGCM(_key(secret))
                return cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], about).decode()
    except (binascii.Error, InvalidTag, ValueError):
        return None
    return None


def is_current(sealed: str, secrets: Sequence[bytes]) -> bool:
    """Whether it is sealed for the first of the cluster secrets."""
    return sealed.partition(":")[0] == _id(secrets[0])


def _key(secret: bytes) -> bytes:
    return hmac.digest(secret, _LABEL, hashlib.sha256)


def _id(secret: bytes) -> str:
    """Names a cluster secret without telling it."""
    return hmac.digest(secret, _ID_LABEL, hashlib.sha256).hex()[:_ID_LENGTH]
