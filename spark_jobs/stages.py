"""What the workers run on the rows of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

# For `mapInArrow`: batches in, batches out.
Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
