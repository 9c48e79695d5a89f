"""How the JVM of a session starts: quickly, and without chatter.

Half of Spark's start is loading classes. A JVM can write the classes that it loaded to an archive
when it ends, and the next JVM maps that instead: two to three seconds less for each command. The
archive (about 190 MB) is in the user's cache, made by the first command there; it belongs to one
Java and one Spark, and the JVM ignores one that does not fit. KLAMM_CLASS_ARCHIVE=no does without.
"""

import contextlib
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

import pyspark

#: Set to `no`, it keeps klamm from making or using an archive.
_SWITCH: Final = "KLAMM_CLASS_ARCHIVE"
#: How a complete archive begins; the JVM writes this last.
_MAGIC: Final = (0xF00BABA8).to_bytes(4, "little")
#: Another command that began to make one so long ago has died.
_CLAIM_S: Final = 600.0
_LOWEST_PRIORITY: Final = 19
#: The JVM prints this whenever Spark starts it; no option keeps it from doing so.
_CHATTER: Final = (b"WARNING: Using incubator modules:",)


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of this Java and this Spark."""

    path: Path
    #: Whether this command makes it.
    is_new: bool

    @classmethod
    def find(cls) -> "ClassArchive | None":
        """The archive, or the place for one; None if there is none and none is to be made."""
        if os.environ.get(_SWITCH, "").lower() == "no" or (java := _java()) is None:
            return None
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
        try:
            seen = [str(each) for each in (java, java.stat().st_mtime, jars, jars.stat().st_mtime)]
            name = hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]
            path = Path(cache, "klamm", f"spark-{name}.jsa")
            path.parent.mkdir(parents=True, exist_ok=True)
            if _begins_with(path, _MAGIC):
                return cls(path, is_new=False)
            return cls(path, is_new=True) if _claim(path) else None
        except OSError:
            return None  # a cache that cannot be written only costs time

    def options(self) -> str:
        """The options of the JVM."""
        what = "ArchiveClassesAtExit" if self.is_new else "SharedArchiveFile"
        # Warnings about classes that cannot be archived concern nobody.
        return f"-XX:{what}={self.path} -Xlog:disable -Xlog:all=error:stderr"


def _begins_with(path: Path, start: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(start)) == start
    except FileNotFoundError:
        return False


def _java() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return Path(found).resolve() if found else None


def _claim(archive: Path) -> bool:
    """Let only one of the commands that run at the same time make the archive."""
    claim = archive.with_suffix(".claim")
    with contextlib.suppress(FileNotFoundError):
        if time.time() - claim.stat().st_mtime > _CLAIM_S:
            claim.unlink()
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def log_options() -> str:
    """The options of the JVM that keep Spark's log to what people need.

    A log4j2.properties of the user's own, in $SPARK_CONF_DIR, takes precedence.
    """
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder and Path(folder, "log4j2.properties").exists():
        return ""
    ours = files("klamm.pipeline").joinpath("log4j2.properties")
    return f"-Dlog4j2.configurationFile=file:{ours}"


def run_last(process: int) -> None:
    """Give all threads of a process the lowest priority: nobody waits for the rest of its work."""
    with contextlib.suppress(OSError, AttributeError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), _LOWEST_PRIORITY)


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Leave out the known chatter of processes that are started meanwhile, for as long as they run.

    Their standard error is a pipe, and a thread passes on whatever else they write.
    """
    try:
        own = os.dup(2)
    except OSError:  # closed: nobody reads it
        yield
        return
    outlet, inlet = os.pipe()
    os.dup2(inlet, 2)
    os.close(inlet)
    threading.Thread(target=_pass_on, args=(outlet, own), daemon=True, name="stderr").start()
    try:
        yield
    finally:
        os.dup2(own, 2)


def _pass_on(outlet: int, own: int) -> None:
    with os.fdopen(outlet, "rb") as lines, contextlib.suppress(OSError):
        for line in lines:
            if not line.startswith(_CHATTER):
                os.write(own, line)
    os.close(own)
