"""Error codes in responses: raise them, find them; and the nearest known name to a wrong one."""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from klamm.protocol.codes import ErrorCode, KafkaError


def check(code: int, message: str | None = None) -> None:
    """Raise KafkaError unless the code is NONE."""
    if code != ErrorCode.NONE:
        raise KafkaError(ErrorCode.of(code), message)


def error_codes(message: Any) -> Iterator[int]:
    """Every error code in a response, at any depth."""
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
    """`; did you mean orders?` if a similar name is known, else an empty string."""
    nearest = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""
