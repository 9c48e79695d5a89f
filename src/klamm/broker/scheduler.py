"""What a broker does again and again without being asked: checkpoints, retention, compaction."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from klamm.broker.clock import Clock
from klamm.broker.log.manager import LogManager
from klamm.broker.replication.manager import ReplicaManager
from klamm.config.broker import BrokerConfig

log = logging.getLogger("klamm.broker.scheduler")

#: One may be busy with compaction for long.
_THREADS: Final = 3
#: How often files are looked for whose time is up.
_DELETION_CHECK_MS: Final = 1_000
#: An interval that stands for never.
_NEVER_MS: Final = 1 << 40


class BrokerScheduler:
    """A task for each kind of work; what may wait for the disk is done in another thread."""

    def __init__(
        self, config: BrokerConfig, replicas: ReplicaManager, logs: LogManager, clock: Clock
    ) -> None:
        self.config = config
        self._replicas = replicas
        self._logs = logs
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self._threads = ThreadPoolExecutor(_THREADS, "upkeep")

    def start(self) -> None:
        """Begin with everything."""
        config, logs = self.config, self._logs
        delay_ms = config.log_initial_task_delay_ms
        self._run(self._shrink_isrs())
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
                partial(self._at_wall_time, logs.enforce_retention),
                config.log_retention_check_interval_ms,
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
        ):
            if interval_ms < _NEVER_MS:
                self._run(self._every(interval_ms, first_ms, work))
        if config.log_cleaner_enable:
            self._run(self._clean())

    async def stop(self) -> None:
        """Begin nothing new, and wait for what is under way."""
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
            self._replicas.shrink_isrs()

    async def _clean(self) -> None:
        def clean() -> bool:
            return self._logs.clean_once(now_ms=self._clock.wall_ms()) is not None

        while True:
            await asyncio.sleep(self.config.log_cleaner_backoff_ms / 1000)
            while await self._in_thread(clean):
                pass

    async def _in_thread(self, work: Callable[[], object]) -> object:
        """Do something in another thread to its end, even if nobody waits for it any more."""
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
