"""Bearer tokens: which are believed."""

import json
import time

import pytest

from klamm.broker.security.mechanisms import TokenRefused
from klamm.broker.security.tokens import TokenValidator, parse_key_set
from tests.support.tokens import TokenIssuer


@pytest.mark.rule("SEC-14")
def test_a_token_without_a_key_id_is_believed_if_a_key_of_the_set_has_signed_it():
    issuer, stranger = TokenIssuer(), TokenIssuer()
    keys = parse_key_set(json.dumps(issuer.key_set()))
    believe = TokenValidator(lambda: keys, lambda: time.time_ns() // 1_000_000)
    for header in ({"kid": None}, {"kid": "key-1"}):
        assert believe(issuer.token(header)).subject == "alice"
    with pytest.raises(TokenRefused):
        believe(stranger.token({"kid": None}))
