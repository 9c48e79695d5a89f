"""Passwords in dynamic settings, in Kafka's own form."""

import pytest

from klamm.broker.security.password_encoder import PasswordEncoder
from klamm.errors import ConfigError

pytestmark = pytest.mark.rule("SEC-20")


@pytest.mark.parametrize("factory", ["PBKDF2WithHmacSHA512", "PBKDF2WithHmacSHA1"])
def test_what_is_encoded_is_decoded_and_not_to_be_seen(factory):
    encoder = PasswordEncoder("secret", key_factory=factory)
    text = encoder.encode("pässword,with:signs")
    assert "pässword" not in text
    assert encoder.decode(text) == "pässword,with:signs"
    assert f"keyFactoryAlgorithm:{factory}" in text
    assert "iterations:4096" in text


def test_the_old_secret_still_decodes():
    text = PasswordEncoder("old").encode("p")
    assert PasswordEncoder("new", old_secret="old").decode(text) == "p"


def test_a_wrong_secret_is_refused_and_says_nothing():
    text = PasswordEncoder("one").encode("planted")
    with pytest.raises(ConfigError) as refused:
        PasswordEncoder("two").decode(text)
    assert "planted" not in str(refused.value)
    assert text not in str(refused.value)
