"""Kafka: which offsets a batch reads, and the transactional publisher."""
