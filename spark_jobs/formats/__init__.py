"""From the bytes of records to JSON texts: Avro, Protobuf, and JSON behind a registry's frame."""
