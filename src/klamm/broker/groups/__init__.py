"""Consumer groups and their offsets (the classic protocol), as state machines.

Nothing here opens a socket or a file, looks at a clock or rolls a die: time comes in with each
call, and what has to be written or answered comes out as data (`effects.py`).
"""
