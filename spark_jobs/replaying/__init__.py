"""Pairing an interval again as if all its events had come in time, and correcting what was published otherwise."""
