"""The small text files of a log directory and of a replica.

Names and formats are Kafka's, so that Apache Kafka and klamm can start on each other's directories.
Any of these files may be missing or damaged: recovery then finds its content in the log itself, at
worst by reading more of the log.
"""

from __future__ import annotations

import base64
import fcntl
import logging
import os
import uuid
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from klamm.broker.log.files import Files, read_bytes
from klamm.config.properties import format_properties, read_properties
from klamm.errors import ConfigError
from klamm.names import TopicPartition

logger = logging.getLogger(__name__)

HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"

_VERSION: Final = "0"


def encode_checkpoint(entries: Iterable[str]) -> bytes:
    """Version, number of entries, then one entry a line."""
    lines = list(entries)
    return ("\n".join([_VERSION, str(len(lines)), *lines]) + "\n").encode()


def decode_checkpoint(content: bytes) -> list[list[str]]:
    """The entries, each split at blanks; ValueError if the file is not whole."""
    lines = content.decode().splitlines()
    if len(lines) < 2 or lines[0] != _VERSION:
        raise ValueError("it does not begin with version 0 and a count")
    entries = [line.split(" ") for line in lines[2:] if line]
    if len(entries) != int(lines[1]):
        raise ValueError(f"it announces {lines[1]} entries and has {len(entries)}")
    return entries


class OffsetCheckpoint:
    """One offset for each partition of a log directory."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files

    def read(self) -> dict[TopicPartition, int]:
        """The offsets that were written last; empty if the file is missing or damaged."""
        try:
            entries = decode_checkpoint(self._path.read_bytes())
            return {TopicPartition(topic, int(p)): int(offset) for topic, p, offset in entries}
        except FileNotFoundError:
            return {}
        except ValueError as error:
            logger.warning("%s is damaged and ignored: %s", self._path, error)
            return {}

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file's content, durably. Slow: it waits for the disk."""
        lines = (f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())
        self._files.replace_content(self._path, encode_checkpoint(lines), sync=True)


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The broker and the cluster that a log directory belongs to."""

    broker_id: int
    cluster_id: str


def claim_directory(path: Path, identity: MetaProperties, files: Files) -> None:
    """Check `meta.properties` against `identity`, or write it into a directory that has none."""
    meta = path / META_PROPERTIES
    if not meta.exists():
        content = {
            "version": _VERSION,
            "broker.id": str(identity.broker_id),
            "cluster.id": identity.cluster_id,
        }
        files.replace_content(meta, format_properties(content).encode(), sync=True)
        return
    found = read_properties(meta)
    if found.get("version", _VERSION) != _VERSION:
        raise ConfigError(f"{meta}: version is {found['version']}, and 0 would be accepted")
    for key, expected in (
        ("broker.id", str(identity.broker_id)),
        ("cluster.id", identity.cluster_id),
    ):
        # Both keys may be missing from a directory that an old broker left behind.
        if found.get(key, expected) != expected:
            raise ConfigError(
                f"{meta}: {key} is {found[key]}, but this broker's is {expected}; "
                "log.dirs may name the directory of another broker or cluster"
            )


def read_broker_id(path: Path) -> int | None:
    """The broker id that a log directory was claimed for, None if it was not."""
    meta = path / META_PROPERTIES
    if not meta.exists():
        return None
    text = read_properties(meta).get("broker.id")
    return int(text) if text is not None else None


class DirectoryLock:
    """The `.lock` of a log directory, held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # The kind of lock that Java takes, so that a real Kafka broker is kept out too.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise ConfigError(
                f"the log directory {path} is in use by another process, which holds {LOCK}"
            ) from error
        #: Gives the directory up; what is let go without that gives it up as well.
        self.release = weakref.finalize(self, os.close, fd)


def take_clean_shutdown_mark(path: Path, files: Files) -> bool:
    """Remove the clean shutdown mark; return whether it was there.

    It is removed at once, so that a crash after this point is not taken for a clean shutdown.
    """
    mark = path / CLEAN_SHUTDOWN
    if not mark.exists():
        return False
    files.delete(mark)
    files.sync_directory(path)
    return True


def put_clean_shutdown_mark(path: Path, files: Files) -> None:
    """Mark the log directory as shut down in order."""
    files.replace_content(path / CLEAN_SHUTDOWN, b'{"version":0,"brokerEpoch":-1}', sync=True)


def encode_topic_id(topic_id: uuid.UUID) -> str:
    """Kafka's 22 characters for an id."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(text: str) -> uuid.UUID:
    """The id of Kafka's 22 characters."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def read_topic_id(replica: Path) -> uuid.UUID | None:
    """The topic id in `partition.metadata`, None if there is none or it is damaged."""
    try:
        text = read_bytes(f"{replica}/{PARTITION_METADATA}").decode()
        pairs = dict(line.split(": ", 1) for line in text.splitlines() if line)
        return decode_topic_id(pairs["topic_id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        logger.warning("%s/%s is damaged and ignored: %r", replica, PARTITION_METADATA, error)
        return None


def write_topic_id(replica: Path, topic_id: uuid.UUID, files: Files) -> None:
    """Write the topic id to the `partition.metadata` file of a replica."""
    content = f"version: {_VERSION}\ntopic_id: {encode_topic_id(topic_id)}\n"
    files.replace_content(f"{replica}/{PARTITION_METADATA}", content.encode(), sync=False)
