"""The pairing rules: pure functions on Arrow columns and numpy arrays, no I/O, no Spark."""
