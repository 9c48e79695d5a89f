"""Kafka's configuration keys, and what a node makes of the ones it was given."""
