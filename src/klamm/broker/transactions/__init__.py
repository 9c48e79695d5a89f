"""The transaction coordinator, its markers and the verification of transactions, as state machines.

Nothing here opens a socket or a file, reads a clock or draws a random number: time comes in with
each call, and what has to be written, sent or responded comes out as data (`effects.py`).
"""
