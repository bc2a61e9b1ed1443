"""From the newest records of two topics to the text of a pipeline file, and what it would do with them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from include.config.pipeline import ANY_ORDER, KAFKA, Pipeline, PipelineError
from include.config.pipeline_file import SCHEMAS, load_pipeline
from include.config.time_text import utc
from spark_jobs.formats.registry import Registry
from spark_jobs.joining.documents import NoProposal
from spark_jobs.joining.file_text import file_text
from spark_jobs.joining.reasons import about_share, doubts_of_share
from spark_jobs.joining.schema_files import SchemaFile
from spark_jobs.joining.settings import FoundSettings, find_settings, look
from spark_jobs.joining.trial import Share, play_sample
from spark_jobs.kafka.newest import NewestRecords

# Fewer pairs than this of both sides are no pipeline.
_LEAST_RATIO = 0.01
# The key in either order has to pair so many times as much.
_MORE = 1.03


class Proposal(NamedTuple):
    """The text of the file, the pipeline that it is, what it comes from, and what it would do with the sample."""

    text: str
    pipeline: Pipeline
    found: FoundSettings
    shares: tuple[Share, Share]


def propose(
    samples: tuple[NewestRecords, NewestRecords],
    registry: Registry | None,
    wall_time: int,
    name: str,
    output: str,
    connections: tuple[str, str] = (KAFKA, KAFKA),
    files: tuple[SchemaFile | None, SchemaFile | None] = (None, None),
) -> Proposal:
    """The proposal for the topics of the samples, left and right, on the clusters of these connections, with these schema files.

    `wall_time`: W (epoch ms) of the samples; `registry`: None without one.

    Raises NoProposal if the topics cannot be joined or a name cannot be one, and what reading schemas raises.
    """
    left, right = (look(sample, registry, file) for sample, file in zip(samples, files, strict=True))
    found = find_settings(left, right)

    def played(one: FoundSettings) -> tuple[Share, Share]:
        return play_sample(_loaded(file_text(one, output, connections, []), name, files), samples, wall_time)

    shares = played(found)
    if found.crossed:
        either = found._replace(key_order=ANY_ORDER)
        of_either = played(either)
        if of_either[0].paired > _MORE * shares[0].paired:
            found, shares = either, of_either
    if max(share.ratio for share in shares) < _LEAST_RATIO:
        raise NoProposal(f"by the best key ({found.key}) nothing pairs: {'; '.join(about_share(shares))}")
    head = [
        f"Proposed by init_pipeline at {utc(wall_time)} from the newest records. Played over them by the rules:",
        *about_share(shares),
        *doubts_of_share(shares),
    ]
    text = file_text(found, output, connections, head)
    return Proposal(text, _loaded(text, name, files), found, shares)


def _loaded(text: str, name: str, schemas: Iterable[SchemaFile | None]) -> Pipeline:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, SCHEMAS).mkdir()
        for schema in filter(None, schemas):
            Path(folder, SCHEMAS, schema.name).write_text(schema.text, encoding="utf-8")
        file = Path(folder) / f"{name}.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            return load_pipeline(file)
        except PipelineError as refused:
            raise NoProposal(f"the proposed file cannot be: {str(refused).removeprefix(f'{file}: ')}") from None
