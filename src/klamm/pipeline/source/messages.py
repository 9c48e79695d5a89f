"""Messages of klamm for users of Spark: errors, lost data, and notices.

Spark shows an error of a Python worker under the whole traceback. An error of klamm is a sentence
for the user, so that is all that is shown of it. Data that is gone before it was read fails the
query or is logged, in Spark's words.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from klamm.errors import KlammError
from klamm.pipeline.source.ranges import OffsetRange

#: Spark's workers read this variable when they report an error.
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"

_LOG: Final = logging.getLogger("klamm.spark")
_LOSS_LOG: Final = logging.getLogger(__name__)

#: Spark's own words.
_ADVICE_FAIL: Final = (
    "Some data may have been lost because they are not available in Kafka any more; either the "
    "data was aged out by Kafka or the topic may have been deleted before all the data in the "
    "topic was processed. If you don't want your streaming query to fail on such cases, set the "
    'source option "failOnDataLoss" to "false".'
)
_ADVICE_GO_ON: Final = (
    "Some data may have been lost because they are not available in Kafka any more; either the "
    "data was aged out by Kafka or the topic may have been deleted before all the data in the "
    "topic was processed. If you want your streaming query to fail on such cases, set the source "
    'option "failOnDataLoss" to "true".'
)


@contextmanager
def plainly() -> Iterator[None]:
    """Let errors of klamm reach the user of Spark as their message alone."""
    try:
        yield
    except KlammError:
        if _is_spark_worker():
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


def tell(message: str, *arguments: object) -> None:
    """Log one line at any log level: to the user's handlers, or to stderr without any."""
    if not _LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("klamm: %(message)s"))
        _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    _LOG.info(message, *arguments)


def _is_spark_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


class DataLossError(KlammError):
    """Offsets that were to be read are gone for good."""


def report_loss(what: str, *, fail: bool) -> None:
    """Raise, or go on after a warning."""
    if fail:
        raise DataLossError(f"{what}. {_ADVICE_FAIL}")
    _LOSS_LOG.warning("%s. %s", what, _ADVICE_GO_ON)


def cannot_read(wanted: OffsetRange, position: int, why: str) -> str:
    """The message about a part of a range that a task cannot read."""
    return f"Cannot fetch records in {wanted} from offset {position} on: {why}"
