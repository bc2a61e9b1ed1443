"""The story of one pair, from record files or from tables: what became of each of its messages and why, in words."""
