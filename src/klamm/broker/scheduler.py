"""Background work of a broker: periodic tasks such as checkpoints, retention and compaction, and
flushes of logs."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from klamm.broker.clock import Clock
from klamm.broker.log.manager import LogManager
from klamm.broker.replication.manager import ReplicaManager
from klamm.config.broker import BrokerConfig
from klamm.metrics.meters import Timer
from klamm.slices import collect_frozen, finish

log = logging.getLogger("klamm.broker.scheduler")

T = TypeVar("T")

#: Compaction may keep one of them busy for long.
_THREADS: Final = 3
_FLUSH_THREADS: Final = 2
#: How often deleted files are checked for the end of their delay.
_DELETION_CHECK_MS: Final = 1_000
#: How often the garbage collector visits what large requests have kept from it.
_COLLECTION_MS: Final = 600_000
#: An interval that stands for never.
_NEVER_MS: Final = 1 << 40


class LogFlusher:
    """Runs flushes of logs in threads of their own, and measures how long they take.

    They do not share the threads that decode the controller's requests: a flush may be slow.
    Every method but `close` may be called on any thread.
    """

    def __init__(self, clock: Clock) -> None:
        self.flushes = Timer(lambda: clock.steady_ms() / 1000)
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_FLUSH_THREADS, "flusher")

    def run_later(self, work: Callable[[], None]) -> None:
        """Run a flush soon, in another thread."""
        self._loop.call_soon_threadsafe(self._loop.run_in_executor, self._threads, work)

    def on_flush(self, seconds: float) -> None:
        """Note how long a flush took."""
        self._loop.call_soon_threadsafe(self.flushes.observe, seconds)

    async def close(self) -> None:
        """Wait for the flushes under way."""
        await asyncio.to_thread(self._threads.shutdown)


class BrokerScheduler:
    """Runs one task for each kind of periodic work, in another thread if it may wait for a disk."""

    def __init__(
        self, config: BrokerConfig, replicas: ReplicaManager, logs: LogManager, clock: Clock
    ) -> None:
        self.config = config
        self._replicas = replicas
        self._logs = logs
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self._threads = ThreadPoolExecutor(_THREADS, "scheduler")

    def start(self) -> None:
        """Start all tasks."""
        config, logs = self.config, self._logs
        delay_ms = config.log_initial_task_delay_ms
        self._run(self._shrink_isrs())
        if config.log_retention_check_interval_ms < _NEVER_MS:
            self._run(self._enforce_retention())
        for work, interval_ms, first_ms in (
            (
                logs.checkpoint_high_watermarks,
                config.replica_high_watermark_checkpoint_interval_ms,
                config.replica_high_watermark_checkpoint_interval_ms,
            ),
            (
                logs.checkpoint_recovery_points,
                min(
                    config.log_flush_offset_checkpoint_interval_ms,
                    config.log_flush_start_offset_checkpoint_interval_ms,
                ),
                delay_ms,
            ),
            (
                partial(self._at_wall_time, logs.flush_due_logs),
                config.log_flush_scheduler_interval_ms,
                delay_ms,
            ),
            (
                partial(self._at_wall_time, logs.delete_expired_files),
                _DELETION_CHECK_MS,
                _DELETION_CHECK_MS,
            ),
            (
                partial(self._at_wall_time, logs.expire_producers),
                config.producer_id_expiration_check_interval_ms,
                config.producer_id_expiration_check_interval_ms,
            ),
            (collect_frozen, _COLLECTION_MS, _COLLECTION_MS),
        ):
            if interval_ms < _NEVER_MS:
                self._run(self._every(interval_ms, first_ms, work))
        if config.log_cleaner_enable:
            self._run(self._clean())

    async def stop(self) -> None:
        """Cancel all tasks, and wait for the work that runs in threads."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    def _at_wall_time(self, work: Callable[..., object]) -> None:
        work(now_ms=self._clock.wall_ms())

    async def _every(self, interval_ms: int, first_ms: int, work: Callable[[], object]) -> None:
        pause_ms = first_ms
        while True:
            await asyncio.sleep(pause_ms / 1000)
            await self._in_thread(work)
            pause_ms = interval_ms

    async def _shrink_isrs(self) -> None:
        while True:
            await asyncio.sleep(self.config.replica_lag_time_max_ms / 2000)
            await finish(self._replicas.shrink_isrs())

    async def _enforce_retention(self) -> None:
        pause_ms = self.config.log_initial_task_delay_ms
        while True:
            await asyncio.sleep(pause_ms / 1000)
            work = partial(self._logs.enforce_retention, now_ms=self._clock.wall_ms())
            for name in await self._in_thread(work) or ():
                self._replicas.purgatories.on_low_watermark(name)
            pause_ms = self.config.log_retention_check_interval_ms

    async def _clean(self) -> None:
        def clean() -> bool:
            return self._logs.clean_once(now_ms=self._clock.wall_ms()) is not None

        while True:
            await asyncio.sleep(self.config.log_cleaner_backoff_ms / 1000)
            while await self._in_thread(clean):
                pass

    async def _in_thread(self, work: Callable[[], T]) -> T | None:
        """Run `work` in another thread and wait for its end, even when this task is cancelled."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await running
            raise
        except Exception:
            log.exception("%r failed", work)
            return None
