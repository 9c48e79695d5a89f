"""Running the console script: in this process, which is quick, or as users do."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from klamm.cli.main import main


@dataclass(frozen=True)
class Result:
    """How a command line ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def ok(self) -> "Result":
        assert self.code == 0, self.err
        return self

    def failed(self, *said: str) -> "Result":
        """It failed, in one sentence that has all of these."""
        assert self.code == 1, (self.code, self.out, self.err)
        assert self.err.startswith("klamm: ") or "\nklamm: " in self.err
        for text in said:
            assert text in self.err
        return self


Klamm = Callable[..., Result]


def run_here(*arguments: str, stdin: bytes = b"", bootstrap: str | None = None) -> Result:
    """What the console script does, without a process of its own."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    given = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    environment = {} if bootstrap is None else {"KLAMM_BOOTSTRAP_SERVER": bootstrap}
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        patch.object(sys, "stdin", given),
        patch.dict(os.environ, environment),
    ):
        try:
            code = main(list(arguments))
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
    return Result(code, _text(out), _text(err))


_INTERRUPTIBLE = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def interruptible(*command: str) -> list[str]:
    """The command line of a child process that Ctrl-C reaches.

    A process inherits an ignored SIGINT, as `nohup` and some CI runners leave it. The child
    restores the signal before it becomes the command.
    """
    return [sys.executable, "-c", _INTERRUPTIBLE, *command]


def _text(stream: io.TextIOWrapper) -> str:
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode()


def run_process(
    *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None
) -> Result:
    """The same as a process."""
    done = subprocess.run(
        [sys.executable, "-m", "klamm", *arguments],
        input=stdin,
        capture_output=True,
        env={**os.environ, **(environment or {})},
        timeout=60,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())
