"""Messages of klamm for users of Spark, whose workers run it.

Spark shows an error of a Python worker under the whole traceback. An error of klamm is a sentence
for the user, so that is all that is shown of it.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from klamm.errors import KlammError

#: Spark's workers look at this when they tell of an error, after which they end.
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"

_LOG: Final = logging.getLogger("klamm.spark")


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
    """One line on stderr, whatever the level of logging; or where the user's handlers put it."""
    if not _LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("klamm: %(message)s"))
        _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    _LOG.info(message, *arguments)


def _is_spark_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
