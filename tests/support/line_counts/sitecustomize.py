"""In a node's processes: counts the lines of Python that the event loop runs without a turn.

A process imports this module when it starts, because its directory is on `PYTHONPATH`, or is forked
from one that has. From SIGUSR2 on the lines of each callback of the event loop are counted, and a
callback that exceeds the limit is written to a file, with its functions. Slices then end after a
number of steps, not after a time, so that the counts are the same on every machine.
"""

import asyncio
import os
import signal
import sys
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

_STEPS_OF_A_SLICE = 20
_RUN = asyncio.Runner.run.__code__


class _LineCounter:
    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._lines = 0

    def begin(self, *_: object) -> None:
        from klamm import slices

        calls = count()
        setattr(  # noqa: B010 - mypy does not take it for an export
            slices, "perf_counter", lambda: next(calls) * slices.SLICE_S / _STEPS_OF_A_SLICE
        )
        sys.settrace(self._on_call)
        self._file.touch()

    @property
    def _file(self) -> Path:
        # The controller's process is forked from the broker's.
        return self._folder / str(os.getpid())

    def _on_call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        caller = frame.f_back
        if caller is not None and caller.f_code is _RUN:
            self._lines = 0
        return self._on_line

    def _on_line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self._lines += 1
            if self._lines == self._limit:
                self._write(frame)
        return self._on_line

    def _write(self, frame: FrameType | None) -> None:
        names = []
        while frame is not None and frame.f_code is not _RUN:
            names.append(frame.f_code.co_qualname)
            frame = frame.f_back
        with self._file.open("a") as file:
            file.write(" < ".join(names) + "\n")


if "KLAMM_TEST_LINE_COUNTS" in os.environ:
    _folder, _limit = os.environ["KLAMM_TEST_LINE_COUNTS"].split("|")
    signal.signal(signal.SIGUSR2, _LineCounter(Path(_folder), int(_limit)).begin)
