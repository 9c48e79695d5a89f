"""How the columns of a table may change: columns are added, and numbers become wider.

These are the changes that Avro's rules allow and that leave every old row readable. Whatever else
differs is refused with the column's name.
"""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from klamm.errors import ConfigError

_WIDER: Final = {
    pa.int32(): (pa.int64(), pa.float32(), pa.float64()),
    pa.int64(): (pa.float32(), pa.float64()),
    pa.float32(): (pa.float64(),),
}


class SchemaChangeError(ConfigError):
    """A change of a schema that a table cannot follow; the message names the column."""


def is_wider(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether every value of the narrow type is one of the wide type, by Avro's promotions."""
    return wide in _WIDER.get(narrow, ())


def added_and_widened(
    table: pa.Schema, wanted: pa.Schema
) -> tuple[list[pa.Field], dict[str, pa.Field]]:
    """What a table lacks to hold rows of `wanted`: new columns, and wider ones by name."""
    added, widened = [], {}
    for field in wanted:
        if field.name not in table.names:
            added.append(field.with_nullable(True))
            continue
        merged = merged_type(field.name, table.field(field.name).type, field.type)
        if merged != table.field(field.name).type:
            widened[field.name] = pa.field(field.name, merged)
    return added, widened


def merged_schema(table: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    """The table's columns, wider where needed, and the new ones after them."""
    added, widened = added_and_widened(table, wanted)
    return pa.schema([*(widened.get(each.name, each) for each in table), *added])


def merged_type(name: str, old: pa.DataType, new: pa.DataType) -> pa.DataType:
    """The type that holds values of both; refused by name if there is none."""
    if old.equals(new) or is_wider(old, new):
        return old
    if is_wider(new, old):
        return new
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return pa.struct(list(merged_schema_of(name, old, new)))
    if pa.types.is_list(old) and pa.types.is_list(new):
        return pa.list_(merged_type(f"{name}[]", old.value_type, new.value_type))
    if pa.types.is_map(old) and pa.types.is_map(new):
        return pa.map_(old.key_type, merged_type(f"{name}{{}}", old.item_type, new.item_type))
    if _is_text(old) and _is_text(new):
        return old
    raise SchemaChangeError(f"Column {name} is {old} in the table and cannot become {new}.")


def merged_schema_of(name: str, old: pa.StructType, new: pa.StructType) -> list[pa.Field]:
    """The fields of a struct that holds values of both."""
    fields: dict[str, pa.Field] = {each.name: each for each in old}
    for each in new:
        before = fields.get(each.name)
        merged = (
            each.type
            if before is None
            else merged_type(f"{name}.{each.name}", before.type, each.type)
        )
        fields[each.name] = pa.field(each.name, merged)
    return list(fields.values())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def conformed(rows: pa.StructArray, fields: Mapping[str, pa.DataType]) -> list[pa.Array]:
    """The columns of these fields: cast where wider, null where the rows have none."""
    names = [each.name for each in rows.type]
    return [
        conform(rows.field(names.index(name)), kind) if name in names else pa.nulls(len(rows), kind)
        for name, kind in fields.items()
    ]


def conform(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column in a type that is the same or wider, in nested fields too."""
    if column.type.equals(kind):
        return column
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        # `field` of a sliced struct is sliced as well; the validity is kept apart.
        children = conformed(column, {each.name: each.type for each in kind})
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) and pa.types.is_list(column.type):
        mask = column.is_null() if column.null_count else None
        offsets = pa.compute.subtract(column.offsets, column.offsets[0])
        values = conform(column.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)
    return column.cast(kind)
