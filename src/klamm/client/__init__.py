"""A synchronous client that administers any Kafka cluster through Kafka's own protocol."""
