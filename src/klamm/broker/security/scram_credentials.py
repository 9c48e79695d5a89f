"""The SCRAM credentials of all users, as `/config/users/<user>` holds them (SEC-4)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from klamm.errors import ConfigError
from klamm.net.scram import ScramCredential, ScramMechanism, parse_credential

log = logging.getLogger("klamm.broker.security")


class ScramCredentials:
    """Credentials by user and mechanism; one that cannot be read refuses that user alone."""

    def __init__(self) -> None:
        self._of_user: dict[str, dict[ScramMechanism, ScramCredential]] = {}

    def put(self, user: str, settings: Mapping[str, str]) -> None:
        """Replace the credentials of a user by those of the user's znode."""
        held: dict[ScramMechanism, ScramCredential] = {}
        for mechanism in ScramMechanism:
            text = settings.get(mechanism.mechanism_name)
            if text is None:
                continue
            try:
                held[mechanism] = parse_credential(text)
            except ConfigError as error:
                log.error("%s of user %r: %s", mechanism.mechanism_name, user, error)
        if held:
            self._of_user[user] = held
        else:
            self._of_user.pop(user, None)

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._of_user.get(user, {}).get(mechanism)

    def described(self) -> dict[str, dict[ScramMechanism, int]]:
        """The iterations of every credential, by user in order; keys are never shown."""
        return {
            user: {mechanism: held[mechanism].iterations for mechanism in sorted(held)}
            for user, held in sorted(self._of_user.items())
        }
