"""JAAS lines: what is read, and what refusals keep to themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.config.jaas import PLAIN_MODULE, format_jaas, parse_jaas
from klamm.errors import ConfigError


def test_users_are_the_options_that_begin_with_user():
    entry = parse_jaas(
        f'{PLAIN_MODULE} required username="admin" password="s" user_alice="a" user_bob=b;'
    )
    assert entry.module == PLAIN_MODULE
    assert entry.options["username"] == "admin"
    assert entry.users == {"alice": "a", "bob": "b"}


@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(max_size=12), max_size=4)
)
def test_what_is_formatted_is_read_back(options):
    assert parse_jaas(format_jaas("a.b.Module", options)).options == options


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Module",
        'Module required password="hunter2"',
        'Module sometimes password="hunter2";',
        'Module required password "hunter2";',
        "Module required password=;",
        'Module required password="hunter2;',
        "Module required password=hunter2!;",
    ],
)
@pytest.mark.rule("SEC-16")
def test_a_line_that_cannot_be_read_is_refused_without_repeating_it(text):
    with pytest.raises(ConfigError) as refused:
        parse_jaas(text)
    assert "hunter2" not in str(refused.value)


@pytest.mark.rule("SEC-16")
def test_the_options_do_not_show():
    assert "hunter2" not in repr(parse_jaas('Module required password="hunter2";'))
