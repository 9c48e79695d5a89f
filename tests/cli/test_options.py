"""What commands say that need more than `pip install klamm` brings."""

import importlib.util

import pytest

from klamm.cli.options import require_extra
from klamm.errors import ConfigError


def test_a_command_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch):
    require_extra("report", "plan")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    require_extra("spark", "snapshot")
    with pytest.raises(ConfigError) as told:
        require_extra("report", "plan")
    assert str(told.value) == "klamm plan needs matplotlib: pip install 'klamm[report]'"
