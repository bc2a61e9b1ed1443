"""Corrections of batches that were paired before: replays of an interval, late events, and rewinds to an earlier batch."""
