"""The data source itself: which reader or writer belongs to which options."""

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from klamm.errors import ConfigError, KlammError
from klamm.pipeline.source.messages import plainly
from klamm.pipeline.source.options import COLUMN_TYPES, column_types, read_options, write_options
from klamm.pipeline.source.reader import (
    FilteringTopicReader,
    TopicReader,
    refused_stream_reader,
    stream_reader,
)
from klamm.pipeline.source.tables.columns import TABLES
from klamm.pipeline.source.tables.reader import TableReader, table_options
from klamm.pipeline.source.transactional_writer import (
    TRANSACTIONAL_ID,
    TransactionalStreamWriter,
    transactional_config,
)
from klamm.pipeline.source.writer import TopicStreamWriter, TopicWriter, check_columns


class KlammDataSource(DataSource):
    """`format("klamm")`: the options and columns of Spark's own `kafka` format, without a jar."""

    @classmethod
    def name(cls) -> str:
        return "klamm"

    def schema(self) -> str:
        """The columns, for a read that names none; options that no read takes are refused here."""
        with plainly():
            if _is_table(self.options):
                options = table_options(self.options)
                types = {name: TABLES[options.table][name] for name in options.columns}
            else:
                _check_for_any_read(self.options)
                types = column_types(self.options)
            return ", ".join(f"{name} {kind}" for name, kind in types.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        with plainly():
            if _is_table(self.options):
                types = TABLES[table_options(self.options).table]
                return TableReader(table_options(self.options, checked_columns(schema, types)))
            columns = checked_columns(schema, COLUMN_TYPES)
            options = read_options(self.options, streaming=False, columns=columns)
            return FilteringTopicReader(options) if options.push_filters else TopicReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            if _is_table(self.options):
                raise ConfigError("A table of the cluster is read once; use spark.read")
            columns = checked_columns(schema, COLUMN_TYPES)
            return stream_reader(read_options(self.options, streaming=True, columns=columns))
        except KlammError as error:
            return refused_stream_reader(error)

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        with plainly():
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
        with plainly():
            options = write_options(self.options)
            check_columns(schema, options)
            if TRANSACTIONAL_ID in options.kafka:
                transactional_config(dict(options.kafka))
                return TransactionalStreamWriter(options)
            return TopicStreamWriter(options)


def _is_table(options: Mapping[str, str]) -> bool:
    return any(name.lower() == "table" for name in options)


def checked_columns(schema: StructType, types: Mapping[str, str]) -> list[str]:
    """The names of the columns that Spark wants, checked against those of the format."""
    for field in schema:
        kind = types.get(field.name)
        if kind is None:
            raise ConfigError(
                f"There is no column '{field.name}'; the columns are {', '.join(types)}"
            )
        if field.dataType.simpleString() != kind:
            raise ConfigError(
                f"The column '{field.name}' is {kind}, not {field.dataType.simpleString()}; cast "
                "it after reading"
            )
    return schema.fieldNames()


def _check_for_any_read(options: Mapping[str, str]) -> None:
    """Refuse options that are invalid for batches and for streams alike."""
    try:
        read_options(options, streaming=True)
    except ConfigError:
        read_options(options, streaming=False)
