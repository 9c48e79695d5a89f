"""What the versions of Spark from 4.0 on have in common, and what the earlier ones lack.

| | lacks |
| --- | --- |
| 4.0 | filters that are pushed down; streams that are written as Arrow |
| 4.0, 4.1 | limits of a micro-batch, and Trigger.AvailableNow in more than one batch |

Where a version lacks a class, this module defines one of the same name.
"""

from dataclasses import dataclass
from typing import Any, Final

import pyspark
from pyspark.sql import datasource

from klamm.errors import ConfigError

#: The oldest version that there is a source for.
OLDEST: Final = (4, 0)
VERSION: Final = tuple(map(int, pyspark.__version__.split(".")[:2]))

HAS_FILTERS: Final = VERSION >= (4, 1)
HAS_ARROW_STREAM_WRITER: Final = VERSION >= (4, 1)
HAS_LIMITS: Final = VERSION >= (4, 2)

if HAS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:  # type: ignore[no-redef]  # one of the two exists
        """How much a micro-batch reads."""

    @dataclass
    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """No limit: all available offsets."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most this many offsets."""

        max_rows: int

    @dataclass
    class ReadMinRows(ReadLimit):  # type: ignore[no-redef]
        """At least this many offsets, or none."""

        min_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Spark makes one batch of all that is available now."""


#: What Spark's writer of a stream is derived from: one that is given Arrow, or else rows.
StreamWriter: Final[Any] = (
    datasource.DataSourceStreamArrowWriter
    if HAS_ARROW_STREAM_WRITER
    else datasource.DataSourceStreamWriter
)


def require(has: bool, option: str, version: str) -> None:
    """Refuse an option that this version of Spark has no use for."""
    if not has:
        raise ConfigError(f"{option} needs pyspark {version}; this is {pyspark.__version__}")


__all__ = [
    "HAS_ARROW_STREAM_WRITER",
    "HAS_FILTERS",
    "HAS_LIMITS",
    "OLDEST",
    "VERSION",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "StreamWriter",
    "SupportsTriggerAvailableNow",
    "require",
]
