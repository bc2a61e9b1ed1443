"""Sessions, and what runs in the workers."""
