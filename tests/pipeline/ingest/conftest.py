"""What the tests of the ingestion share."""

import pytest

from tests.pipeline.ingest.records import Place


@pytest.fixture(params=["delta", "iceberg", "parquet"])
def place(request, tmp_path):
    """A place for tables, once for each kind."""
    return Place(request.param, tmp_path)
