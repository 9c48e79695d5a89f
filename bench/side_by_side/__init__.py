"""The same work for klamm and for Apache Kafka, on the same machine, one after the other."""
