"""The rules at work on tables: events in, rows of compound_events, open_events and rejected_events out."""
