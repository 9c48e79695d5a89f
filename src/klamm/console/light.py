"""Keeping the console's process small and quick to start."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Absent(MetaPathFinder):
    """Makes the import of one package fail, as if it were not installed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == self._package:
            raise ModuleNotFoundError(f"{name} is left out of this process", name=name)
        return None


def leave_out_pandas() -> None:
    """Let pyarrow do without pandas, which it loads with the first array if it can.

    That would take 0.4 s and 40 MB, and nothing here makes a data frame.
    """
    sys.meta_path.insert(0, _Absent("pandas"))
