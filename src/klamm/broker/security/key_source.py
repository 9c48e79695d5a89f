"""Where keys for bearer tokens come from: a file that the operator named, or an https endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import urllib.request
from pathlib import Path
from typing import Final

from klamm.broker.security.tokens import Jwk, parse_key_set
from klamm.errors import ConfigError, UnavailableError

log = logging.getLogger("klamm.broker.security")
_BYTES_MAX: Final = 1 << 20
_TIMEOUT_S: Final = 10
_KEY: Final = "sasl.oauthbearer.jwks.endpoint.url"


class KeySource:
    """Holds the newest key set; a set that cannot be read leaves the last one in force."""

    def __init__(self, url: str, refresh_ms: int) -> None:
        self._url = url
        self._refresh_s = max(1.0, refresh_ms / 1000)
        self._keys: dict[str, Jwk] = {}
        self._changed: float | None = None
        self._task: asyncio.Task[None] | None = None

    def keys(self) -> dict[str, Jwk]:
        """The keys in force; a file is looked at again when it changed."""
        if self._url.startswith("file:"):
            try:
                self._load_file()
            except ConfigError as error:
                log.error("%s", error)
        return self._keys

    async def start(self) -> None:
        """Read the keys for the first time, and then again and again."""
        if self._url.startswith("file:"):
            self._load_file()
            return
        with contextlib.suppress(UnavailableError):
            await self._refresh()
        self._task = asyncio.create_task(self._refresh_forever())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _load_file(self) -> None:
        path = Path(urllib.request.url2pathname(self._url.removeprefix("file:")))
        try:
            changed = path.stat().st_mtime
            if changed != self._changed:
                self._keys = parse_key_set(path.read_bytes())
                self._changed = changed
        except OSError as error:
            raise ConfigError(f"{_KEY}: {path} cannot be read: {error.strerror}") from error

    async def _refresh_forever(self) -> None:
        while True:
            # Without any key no client can authenticate, so the next attempt comes soon.
            await asyncio.sleep(self._refresh_s if self._keys else min(10.0, self._refresh_s))
            with contextlib.suppress(UnavailableError):
                await self._refresh()

    async def _refresh(self) -> None:
        try:
            self._keys = parse_key_set(await asyncio.to_thread(self._download))
        except (OSError, ConfigError) as error:
            log.error("%s: %s gave no keys: %s", _KEY, self._url, error)
            raise UnavailableError(f"{self._url} gave no keys") from error

    def _download(self) -> bytes:
        with urllib.request.urlopen(self._url, timeout=_TIMEOUT_S) as response:
            data: bytes = response.read(_BYTES_MAX)
        return data
