"""Users with SCRAM credentials: add, list, remove.

The broker is given the salted password, never the password itself.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from klamm.client.admin import Admin, check
from klamm.errors import ConfigError
from klamm.net.scram import ITERATIONS_MIN, SCRAM_MECHANISMS, ScramMechanism, salted_password
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode

_SALT_BYTES: Final = 20


@dataclass(frozen=True, slots=True)
class ScramUser:
    """One credential of a user."""

    user: str
    mechanism: str
    iterations: int


def add(
    admin: Admin,
    user: str,
    password: str,
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512,
    iterations: int = ITERATIONS_MIN,
) -> None:
    """Set the password of a user, who is new or not."""
    salt = secrets.token_bytes(_SALT_BYTES)
    _alter(
        admin,
        {
            "deletions": [],
            "upsertions": [
                {
                    "name": user,
                    "mechanism": mechanism,
                    "iterations": iterations,
                    "salt": salt,
                    "salted_password": salted_password(mechanism, password, salt, iterations),
                }
            ],
        },
    )


def remove(admin: Admin, user: str, mechanism: ScramMechanism) -> None:
    """Remove a user's credential; connections that exist go on."""
    deletion = {"name": user, "mechanism": mechanism}
    _alter(admin, {"deletions": [deletion], "upsertions": []})


def remove_all(admin: Admin, user: str, mechanism: ScramMechanism | None = None) -> list[str]:
    """Remove all credentials of a user, or that of one mechanism; the mechanisms removed."""
    held = [each.mechanism for each in describe(admin, [user])]
    chosen = held if mechanism is None else [mechanism.mechanism_name]
    if not chosen:
        raise ConfigError(f"there is no user {user}")
    for each in chosen:
        remove(admin, user, SCRAM_MECHANISMS[each])
    return chosen


def _alter(admin: Admin, values: dict[str, object]) -> None:
    response = admin.ask_controller(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, values)
    for result in response.results:
        check(result.error_code, result.error_message)


def describe(admin: Admin, users: list[str] | None = None) -> list[ScramUser]:
    """The credentials of some users, or of all."""
    asked = None if users is None else [{"name": user} for user in users]
    response = admin.ask_any(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": asked})
    check(response.error_code, response.error_message)
    found: list[ScramUser] = []
    for result in response.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        check(result.error_code, result.error_message)
        found += (
            ScramUser(result.user, ScramMechanism(each.mechanism).mechanism_name, each.iterations)
            for each in result.credential_infos
        )
    return found


def is_known(admin: Admin, broker: int, user: str, mechanism: ScramMechanism) -> bool:
    """Whether one broker has heard of a user's credential."""
    response = admin.ask_broker(
        broker, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": [{"name": user}]}
    )
    check(response.error_code, response.error_message)
    return any(
        each.mechanism == mechanism
        for result in response.results
        for each in result.credential_infos
    )
