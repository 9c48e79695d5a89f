"""Prints the Python to make an environment with: the one that runs it, or one clearly faster.

    python3 tools/fastest_python.py

Brokers are interpreted, and a Python that was built without optimisation, as pyenv builds it by
default, takes up to twice as long for a request (docs/adr/0024-brokers-stay-interpreted.md).
Candidates are the Pythons of the PATH, 3.11 or newer, that have a venv module. Where PYTHON names
one, that is the user's choice and stays.
"""

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter

NAMES = ("python3.13", "python3.12", "python3.11", "python3")
#: Another Python replaces the first if it takes less than this share of its time.
SHARE_MAX = 0.85
#: The candidates take turns, because a machine may be slow for longer than a probe takes.
TURNS = 5

_IDENTIFY = """
import ensurepip, os, sys, venv
if sys.version_info >= (3, 11):
    print(os.path.realpath(sys.executable))
"""


class Counter:
    """Something with attributes and methods."""

    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value

    def add(self, other: int) -> "Counter":
        return Counter(self.value + other)


def probe() -> float:
    """Seconds for what a broker does for small requests: calls, tuples, dictionaries, bytes."""
    began = perf_counter()
    seen = {}
    counter = Counter(0)
    for number in range(20_000):
        counter = counter.add(number)
        first, second = struct.unpack(">hi", struct.pack(">hi", 3, number))
        seen[first, second & 255] = (counter.value, second)
    return perf_counter() - began


def others(path: str, first: str) -> Iterator[str]:
    """Each interpreter of the PATH but the first, under one of its names."""
    found = {os.path.realpath(first)}
    for folder in path.split(os.pathsep):
        for name in NAMES:
            python = os.path.join(folder, name)
            interpreter = _output(python, "-c", _IDENTIFY)
            if interpreter and interpreter not in found:
                found.add(interpreter)
                yield python


def measure(python: str) -> float:
    """The time of the probe in a Python."""
    return float(_output(python, __file__, "--probe"))


def fastest(
    first: str, others: Iterable[str], measure: Callable[[str], float] = measure
) -> tuple[str, float]:
    """The Python to use, and the share of the first one's time that it takes."""
    least = dict.fromkeys((first, *others), float("inf"))
    for _ in range(TURNS):
        for python in least:
            least[python] = min(least[python], measure(python))
    best = min(least, key=least.__getitem__)
    share = least[best] / least[first]
    return (best, share) if share < SHARE_MAX else (first, 1.0)


def _output(python: str, *arguments: str) -> str:
    """What a Python prints; nothing if it fails or cannot be run."""
    if not os.access(python, os.X_OK):
        return ""
    done = subprocess.run([python, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def main() -> None:
    if sys.argv[1:] == ["--probe"]:
        print(min(probe() for _ in range(4)))
        return
    python = sys.executable
    if not os.environ.get("PYTHON"):
        python, share = fastest(python, others(os.environ.get("PATH", ""), python))
        if python != sys.executable:
            print(
                f"Using {python}, which takes {share:.0%} of the time of {sys.executable}; "
                "set PYTHON to make another choice.",
                file=sys.stderr,
            )
    print(python)


if __name__ == "__main__":
    main()
