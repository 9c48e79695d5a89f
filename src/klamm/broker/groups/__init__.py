"""Consumer groups and their offsets (the classic protocol), as state machines.

The state machines open no sockets or files and read no clock: each call is given the time, and
returns records to write and responses to send as effects (`effects.py`). `service.py` performs
them.
"""
