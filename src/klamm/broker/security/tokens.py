"""Bearer tokens: signed JWTs, believed only with a key that the operator named (SEC-14).

A token counts if its signature is right under the key that its header names, its issuer and
audience are the expected ones, it has a subject, and it is within its times. Unsigned tokens,
symmetric algorithms, unknown key ids and keys of another kind than the algorithm are refused.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from klamm.broker.security.mechanisms import TokenClaims, TokenRefused
from klamm.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey

_BITS: Final = {"256": 256, "384": 384, "512": 512}
#: algorithm: the curve that its key has to be on, and the bytes of one half of the signature.
_CURVES: Final = {
    "ES256": ("P-256", 32),
    "ES384": ("P-384", 48),
    "ES512": ("P-521", 66),
}
_TOKEN_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Jwk:
    """One public key of a key set, with the only algorithm it may be used for, if it names one."""

    kind: str
    curve: str | None
    algorithm: str | None
    key: PublicKey


KeySet: TypeAlias = Mapping[str, Jwk]


def parse_key_set(text: str | bytes) -> dict[str, Jwk]:
    """The signature keys of a JWKS document, by key id."""
    try:
        entries = json.loads(text)["keys"]
        usable = [entry for entry in entries if _is_signature_key(entry)]
        return {str(entry["kid"]): _public_key(entry) for entry in usable}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"the key set is not JWKS: {type(error).__name__}") from None


def _is_signature_key(entry: Mapping[str, Any]) -> bool:
    is_asymmetric = entry.get("kty") in ("RSA", "EC")
    return is_asymmetric and "kid" in entry and entry.get("use", "sig") == "sig"


def _public_key(entry: Mapping[str, Any]) -> Jwk:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    algorithm = entry.get("alg")
    if entry["kty"] == "RSA":
        numbers = rsa.RSAPublicNumbers(_number(entry["e"]), _number(entry["n"]))
        return Jwk("RSA", None, algorithm, numbers.public_key())
    curves: dict[str, ec.EllipticCurve] = {
        "P-256": ec.SECP256R1(),
        "P-384": ec.SECP384R1(),
        "P-521": ec.SECP521R1(),
    }
    curve = curves[entry["crv"]]
    point = ec.EllipticCurvePublicNumbers(_number(entry["x"]), _number(entry["y"]), curve)
    return Jwk("EC", entry["crv"], algorithm, point.public_key())


def _number(text: str) -> int:
    return int.from_bytes(_base64url(text))


def _base64url(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


@dataclass(frozen=True, slots=True)
class TokenValidator:
    """Decides about tokens; `keys` gives the key set in force, and the current time is in ms."""

    keys: Callable[[], KeySet]
    now_ms: Callable[[], int]
    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    clock_skew_s: int = 30
    subject_claim: str = "sub"

    def __call__(self, token: str) -> TokenClaims:
        """The claims of a token that is believed; raises TokenRefused for any other."""
        header, claims, signed, signature = _parts(token)
        if header.get("crit") is not None:
            raise TokenRefused("the header demands extensions")
        algorithm, keys = str(header.get("alg")), self.keys()
        if header.get("kid") is not None:
            key = keys.get(str(header["kid"]))
            if key is None:
                raise TokenRefused("the key id is unknown")
            _check_signature(algorithm, key, signed, signature)
        else:
            _check_any_signature(algorithm, keys.values(), signed, signature)
        return self._check_claims(claims)

    def _check_claims(self, claims: Mapping[str, Any]) -> TokenClaims:
        now_s = self.now_ms() / 1000
        expires_s: Any = claims.get("exp")
        not_before_s: Any = claims.get("nbf", 0)
        if not _is_time(expires_s) or now_s >= expires_s + self.clock_skew_s:
            raise TokenRefused("the token has expired or has no expiry")
        if not _is_time(not_before_s) or now_s < not_before_s - self.clock_skew_s:
            raise TokenRefused("the token is not valid yet")
        issued_s: Any = claims.get("iat")
        if not _is_time(issued_s) or now_s < issued_s - self.clock_skew_s:
            raise TokenRefused("the token has no time of issue, or one that is still to come")
        if self.issuer is not None and claims.get("iss") != self.issuer:
            raise TokenRefused("the issuer is another one")
        named = claims.get("aud", [])
        named = [named] if isinstance(named, str) else named
        if self.audiences and (
            not isinstance(named, list) or not set(self.audiences).intersection(map(str, named))
        ):
            raise TokenRefused("the audience is another one")
        subject = claims.get(self.subject_claim)
        if not isinstance(subject, str) or not subject.strip():
            raise TokenRefused("there is no subject")
        return TokenClaims(subject.strip(), int(expires_s * 1000))


def refuse_every_token(token: str) -> TokenClaims:
    """The validator of a listener for which no source of keys is set."""
    raise TokenRefused("sasl.oauthbearer.jwks.endpoint.url is not set, so no token is believed")


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


def _parts(token: str) -> tuple[dict[str, Any], dict[str, Any], bytes, bytes]:
    """Header, claims, the bytes that are signed, and the signature."""
    pieces = token.split(".")
    if len(pieces) != 3 or len(token) > _TOKEN_BYTES_MAX or not token.isascii():
        raise TokenRefused("the token is not a signed JWT")
    try:
        header, claims = (json.loads(_base64url(piece)) for piece in pieces[:2])
        signature = _base64url(pieces[2])
    except (binascii.Error, ValueError, RecursionError):
        raise TokenRefused("the token is not a signed JWT") from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise TokenRefused("the token is not a signed JWT")
    return header, claims, f"{pieces[0]}.{pieces[1]}".encode(), signature


def _check_any_signature(
    algorithm: str, keys: Iterable[Jwk], signed: bytes, signature: bytes
) -> None:
    """Without a key id, any key of the set may have signed."""
    for each in keys:
        with contextlib.suppress(TokenRefused):
            _check_signature(algorithm, each, signed, signature)
            return
    raise TokenRefused("no key of the set has signed it")


def _check_signature(algorithm: str, jwk: Jwk, signed: bytes, signature: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

    family, bits = algorithm[:2], _BITS.get(algorithm[2:])
    if family not in ("RS", "PS", "ES") or bits is None or jwk.algorithm not in (None, algorithm):
        raise TokenRefused("the algorithm is not accepted")
    digest = {256: hashes.SHA256(), 384: hashes.SHA384(), 512: hashes.SHA512()}[bits]
    try:
        if family == "ES":
            curve, half = _CURVES[algorithm]
            if jwk.curve != curve or len(signature) != 2 * half:
                raise TokenRefused("the key does not fit the algorithm")
            assert isinstance(jwk.key, ec.EllipticCurvePublicKey)
            encoded = utils.encode_dss_signature(
                int.from_bytes(signature[:half]), int.from_bytes(signature[half:])
            )
            jwk.key.verify(encoded, signed, ec.ECDSA(digest))
        else:
            if not isinstance(jwk.key, rsa.RSAPublicKey):
                raise TokenRefused("the key does not fit the algorithm")
            scheme: padding.AsymmetricPadding = (
                padding.PKCS1v15()
                if family == "RS"
                else padding.PSS(padding.MGF1(digest), digest.digest_size)
            )
            jwk.key.verify(signature, signed, scheme, digest)
    except InvalidSignature:
        raise TokenRefused("the signature is wrong") from None
