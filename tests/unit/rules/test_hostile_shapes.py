"""The hostile shapes in small: exact, through what a Spark worker runs. In full, with growth and memory: python -m tests.helpers.hostile_shapes."""

from dataclasses import replace

import pytest

from tests.helpers.hostile_events import SHAPES
from tests.helpers.hostile_shapes import measure


@pytest.mark.parametrize("name", SHAPES)
def test_exact(name, monkeypatch):
    small = replace(SHAPES[name], payload_bytes=min(SHAPES[name].payload_bytes, 100_000), rows_a_batch=101)
    monkeypatch.setitem(SHAPES, name, small)
    # Two and a bit of the sessions of an hour that a chain is cut into.
    assert measure(name, min(small.size, 15_000))["exact"]
