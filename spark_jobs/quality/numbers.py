"""What the parts of the report say to each other, and nothing that takes time to import."""

Metrics = dict[str, float]
SIDES = ("left", "right")
ORPHANS = ("left_only", "right_only")
