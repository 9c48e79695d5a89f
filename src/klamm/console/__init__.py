"""The web console: a process of its own that shows a cluster, its history and its choices.

It reads through Kafka's protocol, ZooKeeper and the history, and changes a cluster only through
Kafka's own administration, so that a broker does not know whether anybody looks at it.
"""
