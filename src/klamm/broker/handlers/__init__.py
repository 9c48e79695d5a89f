"""Handlers of the broker's APIs: each takes a decoded request and returns a response."""
