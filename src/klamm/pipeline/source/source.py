"""The data source itself: which reader or writer belongs to which options."""

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from klamm.errors import ConfigError, KlammError
from klamm.pipeline.source.options import COLUMN_TYPES, column_types, read_options, write_options
from klamm.pipeline.source.reader import (
    FilteringTopicReader,
    RefusedStreamReader,
    TopicReader,
    TopicStreamReader,
)
from klamm.pipeline.source.telling import plainly
from klamm.pipeline.source.writer import TopicStreamWriter, TopicWriter, check_columns


class KlammDataSource(DataSource):
    """`format("klamm")`: the options and columns of Spark's own `kafka` format, without a jar."""

    @classmethod
    def name(cls) -> str:
        return "klamm"

    def schema(self) -> str:
        """The columns, for a read that names none; options that no read takes are refused here."""
        with plainly():
            _check_for_any_read(self.options)
            return ", ".join(f"{name} {kind}" for name, kind in column_types(self.options).items())

    def reader(self, schema: StructType) -> TopicReader:
        with plainly():
            columns = checked_columns(schema)
            options = read_options(self.options, streaming=False, columns=columns)
            return FilteringTopicReader(options) if options.push_filters else TopicReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            columns = checked_columns(schema)
            return TopicStreamReader(read_options(self.options, streaming=True, columns=columns))
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


def checked_columns(schema: StructType) -> list[str]:
    """The names of the columns that a read is to have, which may be some of those that it has."""
    for field in schema:
        kind = COLUMN_TYPES.get(field.name)
        if kind is None:
            raise ConfigError(
                f"There is no column '{field.name}'; the columns are {', '.join(COLUMN_TYPES)}"
            )
        if field.dataType.simpleString() != kind:
            raise ConfigError(
                f"The column '{field.name}' is {kind}, not {field.dataType.simpleString()}; cast "
                "it after reading"
            )
    return schema.fieldNames()


def _check_for_any_read(options: Mapping[str, str]) -> None:
    """Refuse what is wrong for a batch and for a stream; which of them it is, is not known yet."""
    try:
        read_options(options, streaming=True)
    except ConfigError:
        read_options(options, streaming=False)
