"""Signed bearer tokens, and the key set that believes them."""

import base64
import json
import time
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils


class TokenIssuer:
    """Signs tokens with one key."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def key_set(self) -> dict[str, Any]:
        """The JSON Web Key Set of the issuer."""
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "EC",
            "crv": "P-256",
            "kid": "key-1",
            "x": base64url(numbers.x.to_bytes(32)),
            "y": base64url(numbers.y.to_bytes(32)),
        }
        return {"keys": [key]}

    def token(self, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A signed token; claims and header can be changed."""
        now = int(time.time())
        head = {"alg": "ES256", "kid": "key-1", **(header or {})}
        body = {"sub": "alice", "iss": "klamm-tests", "aud": "kafka", "iat": now, "exp": now + 60}
        body = {key: value for key, value in {**body, **claims}.items() if value is not None}
        signed = f"{base64url(json.dumps(head).encode())}.{base64url(json.dumps(body).encode())}"
        r, s = utils.decode_dss_signature(
            self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256()))
        )
        return f"{signed}.{base64url(r.to_bytes(32) + s.to_bytes(32))}"


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
