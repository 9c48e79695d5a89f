"""Running a plan: wave by wave, with a throttle, with pause and cancel, across restarts.

What is running is kept in a file, written before each step. The controller carries out the wave
that it was given, whether or not a console is there; a console that starts finds the file and goes
on with the waves that are left.
"""

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from klamm.client import reassignments
from klamm.client.admin import Admin
from klamm.client.reassignments import COMPLETED, IN_PROGRESS
from klamm.console.plans import Prepared, as_plan, as_rows
from klamm.errors import ConfigError, KlammError, UnavailableError
from klamm.names import TopicPartition, counted

_LOOK_INTERVAL_S: Final = 1.0
_RETRY_S: Final = 2.0
_PREPARED_MAX: Final = 20

RUNNING, PAUSED, CANCELLING = "running", "paused", "cancelling"
DONE, CANCELLED, FAILED = "done", "cancelled", "failed"
ACTIVE: Final = (RUNNING, PAUSED, CANCELLING)


@dataclass(slots=True)
class Job:
    """A plan that is being run, or that was the last to be; this is what the file holds."""

    id: str
    user: str
    demands: dict[str, Any]
    waves: list[list[dict[str, Any]]]
    bytes: list[int]  # of each wave
    throttle: int | None
    status: str = RUNNING
    wave: int = 0  # the next one to be begun, or the one under way
    begun: bool = False  # whether the controller was given this wave
    moved: int = 0  # partitions of this wave that have arrived
    message: str | None = None
    started_at: float = field(default_factory=time.time)
    ended_at: float | None = None

    @property
    def partitions(self) -> int:
        return sum(map(len, self.waves))

    def describe(self) -> dict[str, Any]:
        done = sum(map(len, self.waves[: self.wave])) + self.moved
        share = 0.0
        if self.wave < len(self.waves) and self.waves[self.wave]:
            share = self.moved / len(self.waves[self.wave])
        copied = sum(self.bytes[: self.wave])
        if self.wave < len(self.bytes):
            copied += int(self.bytes[self.wave] * share)
        total = sum(self.bytes)
        elapsed = (self.ended_at or time.time()) - self.started_at
        fraction = copied / total if total else done / max(1, self.partitions)
        is_active = self.status in ACTIVE
        left = elapsed * (1 - fraction) / fraction if is_active and fraction > 0 else None
        return {
            "id": self.id,
            "user": self.user,
            "demands": self.demands,
            "status": self.status,
            "wave": min(self.wave + 1, len(self.waves)),
            "waves": len(self.waves),
            "partitions_done": done,
            "partitions": self.partitions,
            "bytes_done": copied,
            "bytes": total,
            "throttle": self.throttle,
            "seconds": elapsed,
            "seconds_left": left,
            "message": self.message,
        }


class Mover:
    """Runs at most one job at a time, in a thread of its own."""

    def __init__(self, admin: Admin, file: Path, user: str) -> None:
        self._admin = admin
        self._file = file
        self._user = user
        self._lock = threading.RLock()
        self._changed = threading.Event()
        self._ending = threading.Event()
        self._prepared: dict[str, Prepared] = {}
        self._job = self._read()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Continue the job that was running when the last console ended."""
        if self._job is not None and self._job.status in ACTIVE:
            self._launch()

    def close(self) -> None:
        """Leave the job where it is: the file says how to go on."""
        self._ending.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def keep(self, prepared: Prepared) -> None:
        """Remember a plan that was shown, so that exactly that one can be run."""
        with self._lock:
            self._prepared[prepared.id] = prepared
            while len(self._prepared) > _PREPARED_MAX:
                del self._prepared[next(iter(self._prepared))]

    def job(self) -> dict[str, Any] | None:
        with self._lock:
            return None if self._job is None else self._job.describe()

    def run(self, plan_id: str, throttle: int | None) -> dict[str, Any]:
        """Begin a plan that was shown."""
        with self._lock:
            if self._job is not None and self._job.status in ACTIVE:
                raise ConfigError("A plan is running already; wait for its end, or cancel it.")
            prepared = self._prepared.get(plan_id)
            if prepared is None:
                raise ConfigError("This plan is not known any more; preview it again.")
            if not prepared.waves:
                raise ConfigError("There is nothing to move: the plan is empty.")
            self._job = Job(
                prepared.id,
                self._user,
                dict(prepared.demands),
                [as_rows(wave) for wave in prepared.waves],
                [sum(prepared.bytes.get(name, 0) for name in wave) for wave in prepared.waves],
                throttle,
            )
            self._write()
            self._launch()
            return self._job.describe()

    def pause(self) -> dict[str, Any]:
        """Begin no other wave; the one under way arrives."""
        return self._set_status(RUNNING, PAUSED)

    def resume(self) -> dict[str, Any]:
        return self._set_status(PAUSED, RUNNING)

    def cancel(self) -> dict[str, Any]:
        """Give up what is under way, and begin nothing more. What has arrived stays."""
        with self._lock:
            job = self._active()
            job.status = CANCELLING
            self._write()
            self._changed.set()
            return job.describe()

    def _set_status(self, before: str, after: str) -> dict[str, Any]:
        with self._lock:
            job = self._active()
            if job.status != before:
                raise ConfigError(f"The plan is {job.status}, not {before}.")
            job.status = after
            self._write()
            self._changed.set()
            return job.describe()

    def _active(self) -> Job:
        if self._job is None or self._job.status not in ACTIVE:
            raise ConfigError("No plan is running.")
        return self._job

    # In the thread

    def _launch(self) -> None:
        self._changed.clear()
        self._thread = threading.Thread(target=self._work, name="moves", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        assert self._job is not None
        job = self._job
        while not self._ending.is_set():
            try:
                if self._step(job):
                    return
                pause_s = _LOOK_INTERVAL_S
            except UnavailableError as error:
                job.message = str(error)  # it may come back
                pause_s = _RETRY_S
            except KlammError as error:
                self._end(job, FAILED, str(error))
                return
            self._changed.wait(pause_s)
            self._changed.clear()

    def _step(self, job: Job) -> bool:
        """Check the job and take its next step; return whether it has ended."""
        if job.status == CANCELLING:
            self._give_up(job)
            return True
        if job.wave >= len(job.waves):
            self._clear_throttle(job)
            self._end(job, DONE, None)
            return True
        wave = as_plan(job.waves[job.wave])
        if not job.begun:
            if job.status == PAUSED:
                return False
            self._begin(job, wave)
        rows = reassignments.verify(self._admin, wave)
        job.moved = sum(row.status == COMPLETED for row in rows)
        job.message = None
        if any(row.status == IN_PROGRESS for row in rows):
            return False
        stopped = [row for row in rows if row.status != COMPLETED]
        if stopped:
            first = stopped[0]
            raise KlammError(
                f"{counted(len(stopped), 'partition')} stopped before the end of the move: "
                f"{first.topic}-{first.partition} has replicas {list(first.replicas)}, planned "
                f"were {list(first.target)}. Somebody else cancelled or changed the move."
            )
        with self._lock:
            job.wave, job.begun, job.moved = job.wave + 1, False, 0
            self._write()
        self._changed.set()
        return False

    def _begin(self, job: Job, wave: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        if job.throttle is not None:
            reassignments.throttle(self._admin, wave, job.throttle)
        # A console that ended between asking and writing finds the wave arrived or under way.
        if refused := reassignments.alter(self._admin, wave):
            first = refused[0]
            raise KlammError(
                f"refused: {counted(len(refused), 'partition')}; {first.topic}-{first.partition}: "
                f"{first.error} {first.message or ''}"
            )
        with self._lock:
            job.begun = True
            self._write()

    def _give_up(self, job: Job) -> None:
        if job.begun and job.wave < len(job.waves):
            wave = as_plan(job.waves[job.wave])
            moving = reassignments.list_reassignments(self._admin, wave)
            if moving:
                reassignments.alter(
                    self._admin,
                    {TopicPartition(each.topic, each.partition): None for each in moving},
                )
        self._clear_throttle(job)
        self._end(job, CANCELLED, None)

    def _clear_throttle(self, job: Job) -> None:
        if job.throttle is not None:
            names = [name for wave in job.waves for name in as_plan(wave)]
            reassignments.clear_throttles(self._admin, names)

    def _end(self, job: Job, status: str, message: str | None) -> None:
        with self._lock:
            job.status, job.message, job.ended_at = status, message, time.time()
            self._write()

    # The file

    def _write(self) -> None:
        assert self._job is not None
        self._file.parent.mkdir(parents=True, exist_ok=True)
        beside = self._file.with_suffix(".new")
        beside.write_bytes(orjson.dumps(asdict(self._job)))
        os.replace(beside, self._file)

    def _read(self) -> Job | None:
        with contextlib.suppress(OSError, orjson.JSONDecodeError, TypeError):
            return Job(**orjson.loads(self._file.read_bytes()))
        return None
