"""Java's properties format, as `java.util.Properties` reads it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.config.properties import format_properties, parse_properties, read_properties
from klamm.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t:\t1", {"a": "1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("  a=1  ", {"a": "1  "}),
        ("# a=1\n! b=2\n\n   # c=3\nd=4", {"d": "4"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a=one\\\n   two", {"a": "onetwo"}),
        ("a=one\\\\\nb=2", {"a": "one\\", "b": "2"}),
        ("a=one\\\n# not a comment", {"a": "one# not a comment"}),
        ("a=x\\", {"a": "x"}),
        ("a=C\\:\\\\logs", {"a": "C:\\logs"}),
        ("a=\\t\\n\\r\\f\\q", {"a": "\t\n\r\fq"}),
        ("a=\\u00e9\\ud83d\\ude00", {"a": "é😀"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a==1", {"a": "=1"}),
        ("a : = 1", {"a": "= 1"}),
    ],
)
def test_text_is_read_as_java_reads_it(text: str, expected: dict[str, str]):
    assert parse_properties(text) == expected


def test_an_escape_that_is_cut_short_names_file_and_line(tmp_path: Path):
    path = tmp_path / "server.properties"
    path.write_text("a=1\nb=\\u00g0\n")
    with pytest.raises(ConfigError, match=r"server\.properties, line 2: .*u00g0"):
        read_properties(path)


def test_a_value_without_a_key_names_its_line():
    with pytest.raises(ConfigError, match=r"conf, line 3: there is no key"):
        parse_properties("# x\na=1\n=2", source="conf")


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere\.properties cannot be read: No such file"):
        read_properties(tmp_path / "nowhere.properties")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path):
    path = tmp_path / "server.properties"
    path.write_bytes(b"a=\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_properties(path)


_TEXT = st.text(st.characters(blacklist_categories=("Cs",)))


@given(st.dictionaries(_TEXT.filter(bool), _TEXT))
def test_what_was_written_is_read_back(properties: dict[str, str]):
    assert parse_properties(format_properties(properties)) == properties
