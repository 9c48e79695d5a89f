"""Names that topics may have, and those that are the broker's own."""

import re
from typing import Final

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
_INTERNAL: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, "__share_group_state"})
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")
_LENGTH_MAX: Final = 249


def is_internal(name: str) -> bool:
    """Whether clients may read but not write the topic."""
    return name in _INTERNAL


def is_legal(name: str) -> bool:
    """Whether a topic can have this name (META-5)."""
    return complaint_about(name) is None


def complaint_about(name: str) -> str | None:
    """Why no topic can have this name, in Kafka's words."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > _LENGTH_MAX:
        reason = f"the length of '{name}' is longer than the max allowed length {_LENGTH_MAX}"
    elif not _LEGAL.fullmatch(name):
        reason = (
            f"'{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    else:
        return None
    return f"Topic name is invalid: {reason}"
