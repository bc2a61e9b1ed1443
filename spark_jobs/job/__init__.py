"""What every job does around its work: arguments, lock, session, and one line at its end."""
