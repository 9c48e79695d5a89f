"""klamm: a Kafka cluster in Python, with its controller, its brokers and a Spark pipeline."""
