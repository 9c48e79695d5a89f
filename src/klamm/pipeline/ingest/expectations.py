"""Conditions in SQL that rows must fulfil, checked by DuckDB on columns.

A row fulfils a condition if it is true; null counts as not fulfilled.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from klamm.errors import ConfigError, KlammError
from klamm.pipeline.ingest.options import Expectation, need

_ROWS: Final = "rows"


class ExpectationError(KlammError):
    """Rows break an expectation that was to fail the run."""


class Checker:
    """Checks rows; each task has one."""

    def __init__(self, expectations: Sequence[Expectation]) -> None:
        self._expectations = expectations
        self._duckdb: Any = need("duckdb", "--expect") if expectations else None
        self._connection: Any = None

    def broken(self, rows: pa.Table) -> list[npt.NDArray[np.bool_]]:
        """For each expectation, which rows break it."""
        if not self._expectations:
            return []
        if self._connection is None:
            self._connection = self._duckdb.connect(config={"threads": 1})
            self._connection.execute("SET TimeZone = 'UTC'")
        conditions = ", ".join(
            f"coalesce(({each.sql})::BOOLEAN, false) AS c{at}"
            for at, each in enumerate(self._expectations)
        )
        self._connection.register(_ROWS, rows)
        try:
            found = self._connection.execute(f"SELECT {conditions} FROM {_ROWS}").fetchnumpy()
        except self._duckdb.Error as error:
            reason = str(error).splitlines()[0]
            conditions = "; ".join(each.sql for each in self._expectations)
            raise ConfigError(f"--expect cannot be checked ({conditions}): {reason}") from None
        return [~np.asarray(found[f"c{at}"], np.bool_) for at in range(len(self._expectations))]


def check_expectations(expectations: Sequence[Expectation], schema: pa.Schema) -> None:
    """Refuse conditions that cannot be checked on these columns, before anything is read."""
    Checker(expectations).broken(schema.empty_table())
