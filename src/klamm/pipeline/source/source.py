"""The data source itself: which reader or writer belongs to which options."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from klamm.errors import ConfigError, KlammError
from klamm.pipeline.source.options import read_options, write_options
from klamm.pipeline.source.reader import RefusedStreamReader, TopicReader, TopicStreamReader
from klamm.pipeline.source.telling import plainly
from klamm.pipeline.source.writer import TopicStreamWriter, TopicWriter, check_columns

_SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
_HEADERS: Final = ", headers array<struct<key:string,value:binary>>"


class KlammDataSource(DataSource):
    """`format("klamm")`: the options and columns of Spark's own `kafka` format, without a jar."""

    @classmethod
    def name(cls) -> str:
        return "klamm"

    def schema(self) -> str:
        """The columns, for a read that names none; options that no read takes are refused here."""
        with plainly():
            _check_for_any_read(self.options)
        return self._columns()

    def _columns(self) -> str:
        has_headers = self.options.get("includeheaders", "false").strip().lower() == "true"
        return _SCHEMA + _HEADERS if has_headers else _SCHEMA

    def reader(self, schema: StructType) -> TopicReader:
        with plainly():
            self._check_schema(schema)
            return TopicReader(read_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            self._check_schema(schema)
            return TopicStreamReader(read_options(self.options, streaming=True))
        except KlammError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        with plainly():
            if overwrite:
                raise ConfigError("Save mode overwrite not allowed for topics; use append")
            options = write_options(self.options)
            check_columns(schema, options)
            return TopicWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        with plainly():
            options = write_options(self.options)
            check_columns(schema, options)
            return TopicStreamWriter(options)

    def _check_schema(self, schema: StructType) -> None:
        columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in schema)
        if columns != self._columns():
            raise ConfigError("The source has a fixed schema and cannot be set with a custom one")


def _check_for_any_read(options: Mapping[str, str]) -> None:
    """Refuse what is wrong for a batch and for a stream; which of them it is, is not known yet."""
    try:
        read_options(options, streaming=True)
    except ConfigError:
        read_options(options, streaming=False)
