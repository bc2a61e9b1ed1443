"""Proof that every input offset has one outcome and every compound is on the output topic once."""
