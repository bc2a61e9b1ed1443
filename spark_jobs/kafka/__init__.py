"""Kafka: settings and rights, what the broker has, the reader, and the transactional publisher."""
