"""The pairing rules played on files: records in, batches out, and what became of each event of a pair, told in words."""
