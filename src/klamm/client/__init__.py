"""A client for administration: any Kafka cluster's, synchronous, through Kafka's own protocol."""
