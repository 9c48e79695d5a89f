"""The data source itself: which reader or writer belongs to which options."""

from typing import Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from klamm.errors import ConfigError
from klamm.pipeline.source.options import read_options, write_options
from klamm.pipeline.source.reader import TopicReader, TopicStreamReader
from klamm.pipeline.source.transactional_writer import (
    TRANSACTIONAL_ID,
    TransactionalStreamWriter,
    transactional_config,
)
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
        has_headers = self.options.get("includeheaders", "false").strip().lower() == "true"
        return _SCHEMA + _HEADERS if has_headers else _SCHEMA

    def reader(self, schema: StructType) -> TopicReader:
        self._check_schema(schema)
        return TopicReader(read_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        self._check_schema(schema)
        return TopicStreamReader(read_options(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        if overwrite:
            raise ConfigError("Save mode overwrite not allowed for topics; use append")
        options = write_options(self.options)
        check_columns(schema, options)
        if TRANSACTIONAL_ID in options.kafka:
            raise ConfigError(
                "Option 'kafka.transactional.id' is for streaming queries, whose batches have "
                "numbers: use writeStream, or remove the option to write at least once."
            )
        return TopicWriter(options)

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> TopicStreamWriter | TransactionalStreamWriter:
        options = write_options(self.options)
        check_columns(schema, options)
        if TRANSACTIONAL_ID in options.kafka:
            transactional_config(dict(options.kafka))
            return TransactionalStreamWriter(options)
        return TopicStreamWriter(options)

    def _check_schema(self, schema: StructType) -> None:
        columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in schema)
        if columns != self.schema():
            raise ConfigError("The source has a fixed schema and cannot be set with a custom one")
