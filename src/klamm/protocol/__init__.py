"""Bytes to messages and back. No sockets, no state, no policy."""
