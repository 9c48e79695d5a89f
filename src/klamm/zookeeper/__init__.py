"""ZooKeeper: the store that klamm builds on, Kafka's znodes in it, and a server to run.

The only package that knows kazoo. Start with `store.py`, which defines the interface.
"""
