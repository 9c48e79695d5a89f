from pathlib import Path

import pytest

from tests.broker.log.making import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "orders-0")
