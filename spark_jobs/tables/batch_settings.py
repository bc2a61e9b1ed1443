"""The settings that batches were planned with: what becomes of the compounds of a batch follows from these, whatever the file says by now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from include.config.pipeline import Pipeline


def output_of(pipeline: Pipeline) -> tuple[object, ...]:
    """What of the settings says where compounds and dead letters go, and what is in the messages of compounds."""
    return pipeline.compound_topics, pipeline.output_rejected_topic, pipeline.value_fields


class BatchSettings(NamedTuple):
    """`pipelines`: settings of different output, one after the other; `since`: the first batch_id of each, ascending."""

    since: tuple[int, ...]
    pipelines: tuple[Pipeline, ...]

    @staticmethod
    def of_all(pipeline: Pipeline) -> BatchSettings:
        """The same settings for every batch."""
        return BatchSettings((0,), (pipeline,))

    @staticmethod
    def of(planned: Iterable[tuple[int, str]]) -> BatchSettings:
        """Those of at least one batch. `planned`: batch_id and settings in JSON."""
        since, pipelines, known = list[int](), list[Pipeline](), ""
        for batch_id, text in sorted(set(planned)):
            if text == known:
                continue
            known, pipeline = text, Pipeline.from_json(text)
            if not pipelines or output_of(pipeline) != output_of(pipelines[-1]):
                since.append(batch_id)
                pipelines.append(pipeline)
        return BatchSettings(tuple(since), tuple(pipelines))

    def indices(self, batch_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """For each batch_id the index of its settings; batches before the first have those of the first."""
        return np.maximum(np.searchsorted(self.since, batch_ids, side="right") - 1, 0)

    def topics(self) -> tuple[str, ...]:
        """Every topic that compounds of any of the batches were to be published to, the output topic first."""
        return tuple(dict.fromkeys(topic for each in self.pipelines for topic in each.compound_topics))
