"""Principals from certificates: the subject as Java writes it, and the mapping rules."""

import ssl

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from klamm.broker.security.principals import (
    Principal,
    parse_mapping_rules,
    parse_super_users,
    principal_of_name,
    subject_of,
)
from klamm.errors import ConfigError
from klamm.local.certificates import CertificateAuthority

AUTHORITY = CertificateAuthority()


def subject(*attributes: tuple[x509.ObjectIdentifier, str]) -> str:
    name = x509.Name([x509.NameAttribute(*each) for each in attributes])
    return subject_of(ssl.PEM_cert_to_DER_cert(AUTHORITY.issue(name).certificate))


@pytest.mark.rule("SEC-6")
def test_the_last_attribute_comes_first():
    assert (
        subject(
            (NameOID.COUNTRY_NAME, "DE"),
            (NameOID.STATE_OR_PROVINCE_NAME, "BW"),
            (NameOID.LOCALITY_NAME, "Ulm"),
            (NameOID.ORGANIZATION_NAME, "Klamm"),
            (NameOID.ORGANIZATIONAL_UNIT_NAME, "Ops"),
            (NameOID.STREET_ADDRESS, "1 Way"),
            (NameOID.DOMAIN_COMPONENT, "org"),
            (NameOID.USER_ID, "u1"),
            (NameOID.COMMON_NAME, "alice"),
        )
        == "CN=alice,UID=u1,DC=org,STREET=1 Way,OU=Ops,O=Klamm,L=Ulm,ST=BW,C=DE"
    )


@pytest.mark.rule("SEC-6")
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ('a,b+c"d\\e<f>g;h', 'a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h'),
        ("#a#b", "\\#a\\#b"),
        ("a=b", "a\\=b"),
        ("Jürgen", "Jürgen"),
        (" a ", "\\ a\\ "),
    ],
)
def test_special_characters_get_a_backslash_and_letters_stay(name, shown):
    assert subject((NameOID.COMMON_NAME, name)) == f"CN={shown}"


@pytest.mark.rule("SEC-6")
def test_other_attributes_are_their_oid_and_hex():
    shown = subject((NameOID.COMMON_NAME, "a"), (NameOID.EMAIL_ADDRESS, "a@b.c"))
    assert shown == "1.2.840.113549.1.9.1=#1605" + b"a@b.c".hex() + ",CN=a"


@pytest.mark.rule("SEC-6")
def test_a_name_of_several_values_is_joined_by_plus():
    name = x509.Name(
        [
            x509.RelativeDistinguishedName(
                [
                    x509.NameAttribute(NameOID.COMMON_NAME, "a"),
                    x509.NameAttribute(NameOID.USER_ID, "b"),
                ]
            )
        ]
    )
    shown = subject_of(ssl.PEM_cert_to_DER_cert(AUTHORITY.issue(name).certificate))
    assert sorted(shown.split("+")) == ["CN=a", "UID=b"]


@pytest.mark.rule("SEC-6")
@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=a,O=x", "CN=a,O=x"),
        ("", "CN=a,O=x", "CN=a,O=x"),
        ("RULE:^CN=(.*?),O=(.*)$/$1@$2/", "CN=Al,O=X", "Al@X"),
        ("RULE:^CN=(.*?),O=(.*)$/$1@$2/L", "CN=Al,O=X", "al@x"),
        ("RULE:^CN=(.*?),.*$/$1/U,DEFAULT", "CN=al,O=x", "AL"),
        ("RULE:^CN=(.*?),OU=Y.*$/$1/,DEFAULT", "CN=al,O=x", "CN=al,O=x"),
        ("RULE:CN=a/x/,RULE:.*(z)/$1/", "CN=a,O=x", None),
        ("RULE:(.)(.*)/$1$9/", "abc", "a$9"),
        (r"RULE:(a)\/b/x$1\/y/", "a/b", "xa/y"),
        ("RULE:(?<n>a).*/$1/", "abc", "a"),
        ("RULE:a(b)?/[$1]/", "a", "[]"),
    ],
)
def test_the_first_rule_that_matches_all_of_the_name_decides(rules, name, user):
    principal = principal_of_name(name, parse_mapping_rules(rules))
    assert principal == (None if user is None else Principal("User", user))


@pytest.mark.rule("SEC-6")
@pytest.mark.parametrize(
    "rules", ["RULE:a/b", "OTHER", "DEFAULT DEFAULT", "RULE:(/b/", "RULE:a/b/X"]
)
def test_rules_that_cannot_be_read_are_refused(rules):
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        parse_mapping_rules(rules)


@pytest.mark.rule("SEC-8")
def test_super_users_are_separated_by_semicolons():
    assert parse_super_users("User:CN=a,O=b; User:c;") == {"User:CN=a,O=b", "User:c"}
    with pytest.raises(ConfigError):
        parse_super_users("alice")
