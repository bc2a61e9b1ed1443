"""Exceptions that operators read, and the points at which tests stop a job."""
