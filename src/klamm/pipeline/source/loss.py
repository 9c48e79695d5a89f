"""Data that should be there and is not: what is said, and whether that ends the query."""

import logging
from typing import Final

from klamm.errors import KlammError
from klamm.pipeline.source.ranges import OffsetRange

#: A topic that no broker has known for this long is not one that is still being announced. Read as
#: `loss.GONE_AFTER_S`, in planning and in tasks.
GONE_AFTER_S: Final = 10.0

_LOG: Final = logging.getLogger(__name__)

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


class DataLossError(KlammError):
    """Offsets that were to be read are gone for good."""


def report_loss(what: str, *, fail: bool) -> None:
    """Raise, or go on after a warning."""
    if fail:
        raise DataLossError(f"{what}. {_ADVICE_FAIL}")
    _LOG.warning("%s. %s", what, _ADVICE_GO_ON)


def cannot_read(wanted: OffsetRange, position: int, why: str) -> str:
    """That a task misses a part of its range."""
    return f"Cannot fetch records in {wanted} from offset {position} on: {why}"
