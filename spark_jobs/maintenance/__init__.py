"""Maintenance of the tables: rows removed for their age and archived before that, files, logs, and the versions that are still needed."""
