"""Names that topics may have, and those that are the broker's own."""

import re
from typing import Final

CONSUMER_OFFSETS: Final = "__consumer_offsets"
_INTERNAL: Final = frozenset({CONSUMER_OFFSETS, "__transaction_state", "__share_group_state"})
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_internal(name: str) -> bool:
    """Whether clients may read but not write the topic."""
    return name in _INTERNAL


def is_legal(name: str) -> bool:
    """Whether a topic can have this name (META-5)."""
    return name not in (".", "..") and _LEGAL.fullmatch(name) is not None
