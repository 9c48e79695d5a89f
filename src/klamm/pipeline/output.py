"""Where results go: a folder in the file system that Spark was told.

Spark's executors write the tables and the driver writes the reports, and both have to be in the
same place: `s3a://bucket/out`, `hdfs://...`, or `out` in whatever the default file system is. So
the driver asks Hadoop for the file system, as Spark does, and resolves a relative path once: an
executor would resolve it against a working directory of its own.
"""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import path as os_path
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from klamm.errors import ConfigError

#: One call of the JVM carries this many bytes of a file.
_PORTION_BYTES: Final = 1 << 20
#: The endpoint that stands for no other.
_S3_ITSELF: Final = "s3.amazonaws.com"
#: Stores in which a file appears when it is complete, and a rename is a copy.
_OBJECT_STORES: Final = frozenset({"s3a", "s3", "gs", "oss"})


@dataclass(frozen=True, slots=True, eq=False)
class OutputFolder:
    """A folder; `str()` gives the address that Spark reads and writes tables at."""

    uri: str
    _files: Any = field(repr=False)  # a FileSystem of Hadoop's
    _gateway: Any = field(repr=False)

    def __truediv__(self, name: str) -> "OutputFolder":
        return OutputFolder(f"{self.uri.rstrip('/')}/{name}", self._files, self._gateway)

    def __str__(self) -> str:
        return self.uri

    @property
    def parent(self) -> "OutputFolder":
        return OutputFolder(str(self._path().getParent()), self._files, self._gateway)

    @property
    def name(self) -> str:
        """The last part of the address."""
        return str(self._path().getName())

    def exists(self) -> bool:
        """Whether there is a file or a folder at this address."""
        with self._explained("read"):
            return bool(self._files.exists(self._path()))

    def names(self) -> list[str]:
        """The names of the files and folders in this folder; none if it is missing."""
        if not self.exists():
            return []
        with self._explained("read"):
            return sorted(each.getPath().getName() for each in self._files.listStatus(self._path()))

    def size(self) -> int | None:
        """The bytes of the file, or of all files in the folder; None if it is missing."""
        if not self.exists():
            return None
        with self._explained("read"):
            return int(self._files.getContentSummary(self._path()).getLength())

    def read(self) -> bytes:
        """The content of the file at this address."""
        with self._explained("read"):
            stream = self._files.open(self._path())
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def write(self, content: bytes | Iterable[bytes]) -> None:
        """Write the file at this address; readers see the old content or the new one."""
        with self._explained("written"):
            if self.uri.partition(":")[0] in _OBJECT_STORES:
                self._write_to(self._path(), content)
                return
            temporary = (self.parent / f".{self.name}.{uuid.uuid4().hex}")._path()
            try:
                self._write_to(temporary, content)
                self._replace(temporary)
            except BaseException:
                self._files.delete(temporary, False)
                raise

    def delete(self) -> None:
        """Delete the file or the folder at this address, if it is there."""
        with self._explained("deleted"):
            self._files.delete(self._path(), True)

    def make(self) -> None:
        """Make the folder, unless it is there."""
        with self._explained("written"):
            self._files.mkdirs(self._path())

    def _path(self) -> Any:
        return self._gateway.jvm.org.apache.hadoop.fs.Path(self.uri)

    def _write_to(self, path: Any, content: bytes | Iterable[bytes]) -> None:
        stream = self._files.create(path, True)
        try:
            for piece in [content] if isinstance(content, bytes) else content:
                for start in range(0, len(piece), _PORTION_BYTES):
                    stream.write(piece[start : start + _PORTION_BYTES])
        finally:
            stream.close()

    def _replace(self, source: Any) -> None:
        """Rename over what is here: HDFS needs to be told so, local disks do it anyway."""
        target = self._path()
        if self._files.rename(source, target):
            return
        hadoop = self._gateway.jvm.org.apache.hadoop.fs
        kind = getattr(hadoop, "Options$Rename")
        options = self._gateway.new_array(kind, 1)
        options[0] = kind.OVERWRITE
        context = hadoop.FileContext.getFileContext(self._files.getUri(), self._files.getConf())
        context.rename(source, target, options)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        with _explained(f"{self.uri} cannot be {what}"):
            yield


def output_folder(spark: SparkSession, text: str) -> OutputFolder:
    """The folder or file that a user named, in the file system that Spark would write it to.

    ConfigError if there is none for its scheme, or if Spark's executors do not see it.
    """
    gateway: Any = spark.sparkContext._gateway
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    with _explained(f"{text} cannot be used"):
        path = gateway.jvm.org.apache.hadoop.fs.Path(text)
        files = path.getFileSystem(conf)
        is_local = is_instance_of(gateway, files, "org.apache.hadoop.fs.LocalFileSystem")
        if is_local:
            # Without checksum files: what people and other programs read lies alone.
            files = files.getRaw()
        uri = str(files.makeQualified(path))
    folder = OutputFolder(uri, files, gateway)
    if is_local and not str(spark.sparkContext.master).startswith("local"):
        _check_shared(spark, folder, text)
    return folder


def _check_shared(spark: SparkSession, folder: OutputFolder, text: str) -> None:
    """Refuse a disk of this machine that the executors do not have.

    They would write their parts of a table to disks of their own, and the table would be empty.
    """
    probe = folder.parent / f".klamm-{uuid.uuid4().hex}"
    probe.write(b"")
    where = str(probe._path().toUri().getPath())
    try:
        tasks = spark.sparkContext.defaultParallelism
        asked = spark.sparkContext.parallelize(range(tasks), tasks)
        blind = asked.map(lambda _: not os_path.exists(where)).collect()
    finally:
        probe.delete()
    if any(blind):
        raise ConfigError(
            f"{text} is on this machine's own disk, which the executors of "
            f"{spark.sparkContext.master} do not see: name a folder that all of them share, such "
            "as s3a://BUCKET/FOLDER or hdfs://HOST/FOLDER."
        )


def object_store_settings(spark: SparkSession, uri: str) -> tuple[tuple[str, str | bool], ...]:
    """Spark's settings of S3 (`fs.s3a.*`), translated for Arrow's client.

    What is set for the bucket (`fs.s3a.bucket.NAME.*`) goes before what is set for all.
    What Spark was not told is left to the environment, as Hadoop leaves it.
    """
    scheme, _, rest = uri.partition("://")
    if scheme not in ("s3", "s3a"):
        return ()
    bucket = rest.partition("/")[0]
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()

    def told(name: str) -> str | None:
        found = hadoop.get(f"fs.s3a.bucket.{bucket}.{name}") or hadoop.get(f"fs.s3a.{name}")
        return str(found).strip() or None if found is not None else None

    settings: dict[str, str | bool | None] = {
        "access_key": told("access.key"),
        "secret_key": told("secret.key"),
        "session_token": told("session.token"),
        "region": told("endpoint.region"),
    }
    endpoint = told("endpoint")
    if endpoint is not None and endpoint != _S3_ITSELF:
        protocol, _, host = endpoint.rpartition("://")
        is_plain = (told("connection.ssl.enabled") or "true").lower() == "false"
        settings |= {
            "endpoint_override": host.rstrip("/"),
            "scheme": protocol or ("http" if is_plain else "https"),
        }
    if (told("aws.credentials.provider") or "").endswith("AnonymousAWSCredentialsProvider"):
        settings["anonymous"] = True
    return tuple((name, value) for name, value in settings.items() if value is not None)


@contextmanager
def _explained(failure: str) -> Iterator[None]:
    """Say in one sentence what Hadoop says in fifty lines."""
    try:
        yield
    except IllegalArgumentException as error:  # a path that Hadoop cannot parse
        raise ConfigError(f"{failure}: {_first_line(error)}") from None
    except Py4JJavaError as error:
        java = error.java_exception
        reason = _first_line(java.getMessage() or java.getClass().getSimpleName())
        if "No FileSystem for scheme" in reason or "ClassNotFoundException" in reason:
            raise ConfigError(
                f"{failure}: {reason} Spark needs the jar of this file system, such as --conf "
                "spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION."
            ) from None
        raise ConfigError(f"{failure}: {reason}") from None


def _first_line(text: object) -> str:
    return str(text).strip().split("\n")[0].rstrip(".") + "."
