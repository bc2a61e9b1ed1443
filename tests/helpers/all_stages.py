"""The jobs of one batch, each in this process."""

from __future__ import annotations

from spark_jobs import land_events, pair_events, publish_compounds, report_quality


def land(warehouse):
    """Everything that waits, as one batch."""
    return land_events.main(warehouse, 1_000_000, ())


def run_all(warehouse):
    """One batch by all four jobs; gives what the report answers."""
    land(warehouse)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    return report_quality.main(warehouse)
