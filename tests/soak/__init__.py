"""A cluster under load for an hour: does it need more, or take longer, at the end than before?

`make soak MINUTES=60` runs it. Clients produce and consume, join and leave, connect and disconnect,
topics are made and deleted, brokers are paused, stopped and killed (`load.py`). Two brokers live
from the first minute to the last, and their memory, descriptors and latencies are measured
(`figures.py`).
"""
