r"""Java's `.properties` format, which is what a `server.properties` is written in.

    # a comment, as is a line that starts with !
    key=value   key:value   key value     one of three separators
    path=C\:\\logs\u002fa                 escapes
    list=a,\
         b                                a backslash joins lines, leading blanks are dropped

A key that occurs twice has its last value. Nothing here knows which keys exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from klamm.errors import ConfigError

_BLANK: Final = " \t\f"
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE: Final = re.compile(r"[0-9a-fA-F]{4}")


def read_properties(path: Path) -> dict[str, str]:
    """The keys and values of the file at `path`, in order of first occurrence."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path} cannot be read: {reason}") from error
    return parse_properties(text, source=str(path))


def parse_properties(text: str, source: str = "<text>") -> dict[str, str]:
    """The keys and values in `text`; `source` names it when something cannot be read."""
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        where = f"{source}, line {number}"
        raw_key, raw_value = _split(line)
        key = _unescape(raw_key, where)
        if not key:
            raise ConfigError(f"{where}: there is no key before the separator in {line!r}")
        properties[key] = _unescape(raw_value, where)
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """Text that `parse_properties` reads back as the same keys and values."""
    return "".join(
        f"{_escape(key, in_key=True)}={_escape(value, in_key=False)}\n"
        for key, value in properties.items()
    )


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, each with the number of its first natural line."""
    joined: str | None = None
    first = 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = natural.lstrip(_BLANK)
        if joined is None:
            if not line or line[0] in "#!":
                continue
            first, joined = number, ""
        # An even number of backslashes at the end escape one another and join nothing.
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        joined += line[:-1] if continues else line
        if not continues:
            yield first, joined
            joined = None
    if joined is not None:
        yield first, joined


def _split(line: str) -> tuple[str, str]:
    """Cut at the first separator that no backslash protects."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return line[:end], rest


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\":
            out.append(text[at])
            at += 1
            continue
        letter = text[at + 1 : at + 2]
        at += 2
        if letter == "u":
            code = text[at : at + 4]
            if not _UNICODE.fullmatch(code):
                raise ConfigError(f"{where}: \\u{code} is not followed by four hexadecimal digits")
            out.append(chr(int(code, 16)))
            at += 4
        else:
            out.append(_LETTERS.get(letter, letter))
    # Java writes a character beyond the first plane as two escapes, which belong together.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, *, in_key: bool) -> str:
    out: list[str] = []
    for at, character in enumerate(text):
        if character in "\t\n\r\f":
            out.append("\\" + {value: name for name, value in _LETTERS.items()}[character])
        elif character in "\\=:#!" or (character == " " and (in_key or at == 0)):
            out.append("\\" + character)
        else:
            out.append(character)
    return "".join(out)
