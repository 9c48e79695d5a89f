"""The parts of kio that klamm uses, imported without kio's test support.

Where hypothesis is installed, importing kio also imports it and registers strategies for kio's
types: 2.5 seconds and 15 MB that a broker has no use for. So hypothesis is hidden meanwhile, and
the rest of klamm takes kio from here.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without_hypothesis() -> Iterator[None]:
    hidden = {"hypothesis": sys.modules["hypothesis"]} if "hypothesis" in sys.modules else {}
    # None in sys.modules makes an import fail as if nothing were installed.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["hypothesis"]
        sys.modules.update(hidden)


with _without_hypothesis():
    from kio._kio_native import get_field_reader, get_reader
    from kio.schema.errors import ErrorCode as KioErrorCode
    from kio.serial import entity_reader, entity_writer
    from kio.serial.errors import InvalidUnicode
    from kio.static.constants import EntityType
    from kio.static.primitive import (
        i8,
        i16,
        i32,
        i32Timedelta,
        i64,
        u16,
    )

__all__ = [
    "EntityType",
    "InvalidUnicode",
    "KioErrorCode",
    "entity_reader",
    "entity_writer",
    "get_field_reader",
    "get_reader",
    "i8",
    "i16",
    "i32",
    "i32Timedelta",
    "i64",
    "u16",
]
