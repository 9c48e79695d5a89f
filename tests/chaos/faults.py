"""Steps of a plan, carried out on a cluster; what was done, and when, is recorded."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from klamm.errors import KlammError
from tests.chaos.plan import Step
from tests.chaos.recording import Fault, Name, Recorder
from tests.chaos.world import LEDGER, OFFSETS, WANDERER, World

#: How long to wait for a cluster to be whole before the next thing is done to it.
_WHOLE_S: Final = 45.0
_STOP_S: Final = 60.0
_DISK_S: Final = 15.0
_POLL_S: Final = 0.05
#: Room for a batch or two in the file that is to hit the limit.
_ROOM_BYTES: Final = 2048
_TOPICS: Final = (LEDGER, WANDERER, OFFSETS)


class Faults:
    """Does one thing after the other, until it is told to stop."""

    def __init__(
        self, world: World, recorder: Recorder, say: Callable[[str], None], stop: threading.Event
    ) -> None:
        self._world = world
        self._recorder = recorder
        self._say = say
        self._stop = stop

    def run(self, steps: tuple[Step, ...]) -> None:
        """All steps, each some time after the cluster has got over the one before."""
        for step in steps:
            if self._stop.wait(step.after_s):
                return
            self.KINDS[step.what](self, step)
            self._world.undo()
            if wrong := self._world.wait_whole(_TOPICS, _WHOLE_S):
                self._say(f"  not whole after {_WHOLE_S:.0f} s: {'; '.join(wrong[:3])}")

    # What can be done

    def _kill(self, step: Step) -> None:
        broker = self._victim(step)
        with self._fault(step, broker):
            self._world.brokers[broker].kill()
            self._stop.wait(step.seconds)
            self._world.brokers[broker].start()

    def _bounce(self, step: Step) -> None:
        broker = self._victim(step)
        with self._fault(step, broker):
            self._world.brokers[broker].kill()
            self._world.brokers[broker].start()

    def _pause(self, step: Step) -> None:
        broker = self._victim(step)
        with self._fault(step, broker):
            self._world.brokers[broker].pause()
            self._stop.wait(step.seconds)
            self._world.brokers[broker].resume()

    def _cut(self, step: Step) -> None:
        broker = self._victim(step)
        with self._fault(step, broker):
            self._world.cut_from_zookeeper(f"broker {broker}", silently=step.is_silent)
            self._stop.wait(step.seconds)

    def _part(self, step: Step) -> None:
        # A leader that is parted from the controller cannot shrink its ISR until they are joined.
        with self._fault(step, lasting=True):
            self._world.part(step.target, step.other, silently=step.is_silent, one_way=step.one_way)
            self._stop.wait(step.seconds)
            self._world.undo()

    def _isolate(self, step: Step) -> None:
        broker = self._victim(step)
        with self._fault(step, broker):
            self._world.isolate(f"broker {broker}", silently=step.is_silent)
            self._stop.wait(step.seconds)
            self._world.undo()

    def _kill_candidate(self, step: Step) -> None:
        broker = self._victim(step)
        with self._fault(step, broker):
            pid = self._world.candidate_pid(broker)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)

    def _kill_zookeeper(self, step: Step) -> None:
        server = self._world.zookeepers[int(step.target.split()[-1]) - 1]
        with self._fault(step, lasting=len(self._world.zookeepers) == 1):
            server.kill()
            self._stop.wait(step.seconds)
            server.start()

    def _pause_zookeeper(self, step: Step) -> None:
        server = self._world.zookeepers[int(step.target.split()[-1]) - 1]
        with self._fault(step, lasting=len(self._world.zookeepers) == 1):
            os.kill(server.pid, signal.SIGSTOP)
            self._stop.wait(step.seconds)
            os.kill(server.pid, signal.SIGCONT)

    def _fill_disk(self, step: Step) -> None:
        """Let the largest file in use grow no more, until its directory has been given up.

        A write that meets the limit is cut short and the next one fails, as on a full disk.
        """
        broker = self._victim(step)
        process = self._world.brokers[broker]
        with self._fault(step, broker):
            largest = max(_active_segments(process.directory), default=0)
            self._world.limit_files(broker, largest + _ROOM_BYTES)
            told = process.log.stat().st_size
            deadline = time.monotonic() + _DISK_S
            while process.is_alive and b"goes offline" not in process.log.read_bytes()[told:]:
                if time.monotonic() > deadline or self._stop.wait(_POLL_S):
                    break
            self._world.limit_files(broker, -1)
            self._stop.wait(2.0)
            # Somebody has made room, and a broker takes a directory back when it starts.
            if process.is_alive:
                process.stop(_STOP_S)
            process.start()

    def _rolling_restart(self, step: Step) -> None:
        for broker, process in self._world.brokers.items():
            with self._fault(step, broker):
                try:
                    process.stop(_STOP_S)
                except KlammError as error:
                    self._say(f"  {error}")
                    process.kill()
                process.start()
                self._world.wait_whole(_TOPICS, _WHOLE_S)

    def _kill_several(self, step: Step) -> None:
        with self._fault(step, lasting=True):
            chosen = [self._world.brokers[int(broker)] for broker in step.target.split(",")]
            for process in chosen:
                process.kill()
            self._stop.wait(step.seconds)
            for process in chosen:
                process.start()

    KINDS: Final = {
        "kill": _kill,
        "bounce": _bounce,
        "pause": _pause,
        "cut from ZooKeeper": _cut,
        "part brokers": _part,
        "isolate": _isolate,
        "kill candidate": _kill_candidate,
        "kill ZooKeeper": _kill_zookeeper,
        "pause ZooKeeper": _pause_zookeeper,
        "fill disk": _fill_disk,
        "rolling restart": _rolling_restart,
        "kill several": _kill_several,
    }

    # Who is meant, and what is written down

    def _victim(self, step: Step) -> int:
        match step.target.split():
            case ["broker", number]:
                return int(number)
            case ["controller"]:
                chosen = self._world.controller()
            case _:
                chosen = self._world.leader((LEDGER, 0))
        return chosen if chosen is not None else 1

    @contextmanager
    def _fault(
        self, step: Step, broker: int | None = None, *, lasting: bool = False
    ) -> Iterator[None]:
        led: tuple[Name, ...] = () if broker is None else self._world.led_by(broker)
        text = str(step) if broker is None else f"{step} (broker {broker})"
        self._say(text)
        began_at = time.time()
        try:
            yield
        finally:
            self._recorder.add(Fault(step.what, text, began_at, time.time(), lasting, broker, led))


def _active_segments(directory: Path) -> Iterator[int]:
    """The size of each log's newest segment."""
    for log in directory.glob("disk-*/*-[0-9]*"):
        segments = sorted(log.glob("*.log"))
        if segments:
            yield segments[-1].stat().st_size
