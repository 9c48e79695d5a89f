"""The fields of a znode in JSON: their values, or an error that names the path and the reason."""

from typing import Any, NoReturn, TypeAlias

import orjson

from klamm.errors import MalformedZnodeError

Json: TypeAlias = dict[str, Any]


def malformed(path: str, reason: str) -> NoReturn:
    """Raise MalformedZnodeError for a path."""
    raise MalformedZnodeError(f"{path}: {reason}")


def object_if_json(path: str, data: bytes | None) -> Json | None:
    """The object, or None for what cannot be parsed at all: there, and only there, Kafka is
    lenient."""
    try:
        value = orjson.loads(data or b"")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        malformed(path, f"a JSON object is expected, not {value!r}")
    return value


def json_object(path: str, data: bytes | None) -> Json:
    """The JSON object in a znode; anything else is malformed."""
    json = object_if_json(path, data)
    if json is None:
        malformed(path, f"JSON is expected, not {data!r}")
    return json


def integer(path: str, value: object, what: str) -> int:
    """The value if it is an integer; anything else is malformed."""
    # JSON's true and false are ints to Python, but not to Kafka.
    if type(value) is not int:
        malformed(path, f"{what} is expected to be an integer, not {value!r}")
    return value


def integer_at(path: str, json: Json, key: str) -> int:
    """The integer of a key; a missing one is malformed."""
    if key not in json:
        malformed(path, f"{key} is missing")
    return integer(path, json[key], key)


def text_at(path: str, json: Json, key: str) -> str:
    """The string of a key; anything else is malformed."""
    value = json.get(key)
    if not isinstance(value, str):
        malformed(path, f"{key} is expected to be a string, not {value!r}")
    return value


def object_at(path: str, json: Json, key: str, default: Json | None = None) -> Json:
    """The object of a key, or the default if the key is missing."""
    value = json.get(key, default)
    if not isinstance(value, dict):
        malformed(path, f"{key} is expected to be an object, not {value!r}")
    return value


def brokers(path: str, value: object, what: str) -> list[int]:
    """A list of broker ids; anything else is malformed."""
    if not isinstance(value, list) or any(type(broker) is not int for broker in value):
        malformed(path, f"{what} is expected to be a list of broker ids, not {value!r}")
    return value
