"""Expressions over records: `json.total > 100 and key == "alice"`.

The grammar is that of Python's expressions, of which a few forms are evaluated here and nothing
else is: names of a record's parts, comparisons, and/or/not, items and attributes of JSON, and a
handful of functions. There is no way from it to Python itself.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from klamm.errors import ConfigError

NAMES: Final = ("key", "value", "json", "headers", "partition", "offset", "timestamp")
_LENGTH_MAX: Final = 1000
_COMPARE: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "len": len,
    "lower": lambda text: str(text).lower(),
    "upper": lambda text: str(text).upper(),
    "starts_with": lambda text, head: str(text).startswith(str(head)),
    "ends_with": lambda text, tail: str(text).endswith(str(tail)),
    "number": float,
}

Record = Mapping[str, Any]
Filter = Callable[[Record], bool]
Evaluate = Callable[[Record], Any]


def compile_filter(text: str) -> Filter:
    """A function that says whether a record is wanted; where it cannot be computed, it is not."""
    if not text.strip():
        return lambda record: True
    if len(text) > _LENGTH_MAX:
        raise ConfigError(f"A filter has at most {_LENGTH_MAX} characters.")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(
            f"{text!r} is not a filter; an example is json.total > 100 and key == 'alice'."
        ) from None
    evaluate = _compile(tree.body)

    def wanted(record: Record) -> bool:
        try:
            return bool(evaluate(record))
        except (TypeError, ValueError, KeyError, IndexError, AttributeError):
            return False

    return wanted


def _compile(node: ast.expr) -> Evaluate:
    match node:
        case ast.Constant(value=value) if isinstance(value, str | int | float | bool | None):
            return lambda record: value
        case ast.Name(id=name) if name in NAMES:
            return _json if name == "json" else lambda record: record[name]
        case ast.BoolOp(op=ast.And(), values=values):
            parts = [_compile(each) for each in values]
            return lambda record: all(part(record) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=values):
            parts = [_compile(each) for each in values]
            return lambda record: any(part(record) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _compile(operand)
            return lambda record: not inner(record)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _compile(operand)
            return lambda record: -inner(record)
        case ast.Compare(left=left, ops=ops, comparators=rights):
            return _comparison([left, *rights], ops)
        case ast.Attribute(value=value, attr=name):
            inner = _compile(value)
            return lambda record: _item(inner(record), name)
        case ast.Subscript(value=value, slice=index):
            inner, at = _compile(value), _compile(index)
            return lambda record: _item(inner(record), at(record))
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            items = [_compile(each) for each in elements]
            return lambda record: [item(record) for item in items]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            given = [_compile(each) for each in arguments]
            call = _FUNCTIONS[name]
            return lambda record: call(*(each(record) for each in given))
        case ast.Name(id=name):
            raise ConfigError(f"A record has no {name!r}; it has {', '.join(NAMES)}.")
    raise ConfigError(
        f"A filter cannot have {ast.unparse(node)!r}; it has comparisons, and, or, not, "
        f"json.field, and {', '.join(_FUNCTIONS)}."
    )


def _comparison(nodes: list[ast.expr], ops: list[ast.cmpop]) -> Evaluate:
    for op in ops:
        if type(op) not in _COMPARE:
            raise ConfigError("A filter compares with ==, !=, <, <=, >, >=, in and not in.")
    sides = [_compile(each) for each in nodes]
    compare = [_COMPARE[type(op)] for op in ops]

    def evaluate(record: Record) -> bool:
        values = [side(record) for side in sides]
        return all(
            check(left, right)
            for check, left, right in zip(compare, values, values[1:], strict=False)
        )

    return evaluate


def _json(record: Record) -> Any:
    return orjson.loads(record["value"] or "null")


def _item(value: Any, name: Any) -> Any:
    """An item of JSON; what is not there is null."""
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, list) and isinstance(name, int):
        return value[name]
    return None
