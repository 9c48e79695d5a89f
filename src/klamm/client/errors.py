"""Error codes in responses: raise them, find them, and suggest a name that was meant."""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from klamm.protocol.codes import ErrorCode, KafkaError


def check(code: int, message: str | None = None) -> None:
    """Raise what an error code says, unless it is NONE."""
    if code != ErrorCode.NONE:
        raise KafkaError(ErrorCode.of(code), message)


def error_codes(message: Any) -> Iterator[int]:
    """Every error code in an answer, wherever in it."""
    for each in fields(message):
        value = getattr(message, each.name)
        if each.name == "error_code":
            yield int(value)
        elif isinstance(value, tuple):
            for item in value:
                if not is_dataclass(item):
                    break
                yield from error_codes(item)


def suggestion(given: str, known: Iterable[str]) -> str:
    """`; did you mean orders?` if something of a similar name is known, else nothing."""
    nearest = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""
