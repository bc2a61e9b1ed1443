"""What `init_pipeline` does: reads the topics, prints the proposal, and writes the file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from include.config.pipeline_file import SCHEMAS
from include.config.setting_types import PipelineName
from spark_jobs.formats.registry import VARIABLE, NoCache, Registry, registry_settings
from spark_jobs.job.arguments import fail, setting_argument
from spark_jobs.joining.names import pipeline_name
from spark_jobs.joining.propose import propose
from spark_jobs.joining.schema_files import SchemaFile, read_schema_file
from spark_jobs.kafka.newest import read_newest
from spark_jobs.kafka.settings import kafka_settings

OUT = Path("-")
Files = tuple[SchemaFile | None, SchemaFile | None]


def chosen_name(given: argparse.Namespace) -> str:
    """The pipeline's name: given, that of the file, or made of the topics. Ends the command if topics or name cannot be, or the file must not
    be written."""
    if given.left == given.right:
        fail(f"--right {given.right}: is the left topic, too; their events could not be told apart")
    name = _name_of_file(given) if given.write != OUT else given.name or pipeline_name(given.left, given.right)
    try:
        setting_argument(PipelineName)(name)
    except argparse.ArgumentTypeError as problem:
        fail(f"{problem}; give a --name")
    if (output := output_topic(given, name)) in (given.left, given.right):
        fail(f"--output {output}: is one of the topics that are paired; compounds would be read as events")
    return name


def output_topic(given: argparse.Namespace, name: str) -> str:
    """The topic of the compounds: given, or made of the pipeline's name."""
    return given.output or f"{name}-compounds"


def _name_of_file(given: argparse.Namespace) -> str:
    path: Path = given.write
    try:
        name = setting_argument(PipelineName)(path.stem)
    except argparse.ArgumentTypeError as problem:
        fail(f"--write {path}: {problem}")
    if given.name not in (None, name):
        fail(f"--name {given.name}: a pipeline is named after its file; write {given.name}.yaml, or leave --name out")
    if path.suffix != ".yaml" or not path.parent.is_dir():
        fail(f"--write {path}: name a file that ends with .yaml, in a folder that is there")
    if path.exists() and not given.force:
        fail(f"--write {path}: is there already; --force overwrites it")
    return str(name)


def schema_files(given: argparse.Namespace) -> Files:
    """Those of left and right, None where none is given. Ends the command if one cannot be used, or must not be written."""
    left, right = (_schema_file(given, side) for side in ("left", "right"))
    if left and right and left.name == right.name and left.text != right.text:
        fail(f"--right-schema-file {right.name}: another file of this name is given for left; both go into one folder")
    return left, right


def _schema_file(given: argparse.Namespace, side: str) -> SchemaFile | None:
    path, message = getattr(given, f"{side}_schema_file"), getattr(given, f"{side}_message")
    if path is None:
        if message is not None:
            fail(f"--{side}-message {message}: goes with --{side}-schema-file")
        return None
    try:
        file = read_schema_file(path, message)
        target = _place(given, file)
        if given.write != OUT and target.exists() and not given.force and target.read_text(encoding="utf-8") != file.text:
            raise ValueError(f"{target} is there already, and is another one; --force overwrites it")
    except (ValueError, OSError) as problem:
        fail(f"--{side}-schema-file {path}: {problem}" + (f" (--{side}-message)" if "message" in str(problem) else ""))
    return file


def _place(given: argparse.Namespace, file: SchemaFile) -> Path:
    return Path(given.write.parent, SCHEMAS, file.name)


def propose_file(given: argparse.Namespace, name: str) -> None:
    """Prints the proposal, and writes the file that is asked for, with the schema files that it names.

    Raises NoProposal where there is none, OSError where the file cannot be written, and what reading topics and schemas raises.
    """
    files = schema_files(given)
    registry = Registry(registry_settings(), NoCache()) if VARIABLE in os.environ else None
    connections = given.left_connection, given.right_connection
    first, (left,) = read_newest(kafka_settings(connections[0]), [given.left], given.sample)
    second, (right,) = read_newest(kafka_settings(connections[1]), [given.right], given.sample)
    proposal = propose((left, right), registry, min(first, second), name, output_topic(given, name), connections, files)
    print(proposal.text, end="", flush=True)
    if given.write != OUT:
        for file_of_side in filter(None, files):
            _place(given, file_of_side).parent.mkdir(exist_ok=True)
            _place(given, file_of_side).write_text(file_of_side.text, encoding="utf-8")
        with given.write.open("w" if given.force else "x", encoding="utf-8") as file:
            file.write(proposal.text)
        print(
            f"\nwrote {given.write}: read it, rehearse it, and create topic {proposal.pipeline.output_topic} before you deploy it"
        )
