"""Replies of ZooKeeper that are decoded in more than one way."""

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from klamm.zookeeper import wire

#: Of lengths around the one that needs a second byte, and with letters of more than one byte.
NAMES = st.lists(
    st.one_of(
        st.text("abü-_.1", max_size=12),
        st.builds(str.__mul__, st.sampled_from(["n", "ü"]), st.integers(120, 260)),
    ),
    max_size=8,
)


@given(NAMES)
@example([])
@example(["a" * 255, "b" * 256])
@example(["", "a"])
def test_children_are_read_as_they_were_written(names: list[str]):
    encoded = [name.encode() for name in names]
    body = struct.pack(">i", len(names))
    body += b"".join(struct.pack(">i", len(name)) + name for name in encoded)
    assert wire.decode_children(bytes(16) + body) == names
