"""The types of a pipeline's settings. Each check takes what the YAML file says and returns the setting, or raises ValueError.

The error is the second half of a line: the value or the rule, then the consequence. `include.config.pipeline_file` puts the file and the
key in front of it. Pydantic's own messages name no consequences, so all but choices and flags have a check of ours.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import Annotated, Any

from croniter import CroniterError, croniter
from pydantic import BeforeValidator, Strict

from include.config.sources import RECORD_TIME, VALUE, parse_source
from include.config.times import check_time_format, check_time_source, check_zone
from include.config.topic_pattern import INTERNAL, check_topic_pattern

MS_PER_UNIT = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# A year: anything longer is a mistake, and sums of a few of these stay far from the end of 64 bits.
LONGEST_MS = 365 * MS_PER_UNIT["d"]
# A pipeline's replay DAG and its maintenance DAG have its name with this suffix.
REPLAY_SUFFIX, MAINTENANCE_SUFFIX = "_replay", "_maintenance"
# In the place of a cron expression: runs begin when there are records.
ON_DATA = "on_data"
DEFAULT = "leave the key out for its default"
# The tables use these columns themselves, so no key or payload field may have such a name.
RESERVED_COLUMNS = frozenset(
    "topic partition offset record_timestamp key value headers ts payload problem reason batch_id side kind op revision "
    "pair_id outcome is_open left_ts left_topic left_partition left_offset left_payload left_batch_id right_ts right_topic "
    "right_partition right_offset right_payload right_batch_id table batch source".split()
)
# Those that they use with `key_order: any`.
DIRECTION_COLUMNS = ("reversed", "left_reversed", "right_reversed")
# Those that they use where a side has compounds of another pipeline.
COMPOUND_COLUMNS = tuple(
    f"{side}{name}" for side in ("", "left_", "right_") for name in ("source_pair_id", "source_revision")
)
# The checks of the quality report that are no laws, and what may follow from a broken one.
JUDGED = ("orphan_ratio", "orphan_ratio_deviation", "skew_drift", "silent", "unpaired", "lost", "foreign_changes")
WARN, FAIL = "warn", "fail"
_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_CONNECTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,250}")
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_MESSAGE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_PIPELINE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
# A pipeline that reads another one's output would move that one's positions if it used its publisher's group.
_PUBLISHER_GROUP = re.compile(rf"{_PIPELINE_NAME.pattern}\.publisher")


def parse_duration(text: object) -> int:
    """Milliseconds of a duration such as ``90s``; raises ValueError on anything else.

    >>> parse_duration("1m"), parse_duration("500ms"), parse_duration("2h"), parse_duration("0s")
    (60000, 500, 7200000, 0)
    >>> parse_duration("-1m")
    Traceback (most recent call last):
    ValueError: '-1m' is not a duration: write a whole number and a unit (ms, s, m, h, d), like 90s
    """
    found = re.fullmatch(r"(\d{1,15})(ms|s|m|h|d)", text) if isinstance(text, str) and text.isascii() else None
    if not found:
        raise ValueError(f"{text!r} is not a duration: write a whole number and a unit (ms, s, m, h, d), like 90s")
    duration = int(found[1]) * MS_PER_UNIT[found[2]]
    if duration > LONGEST_MS:
        raise ValueError(f"{text!r} is longer than a year")
    return duration


def duration(missing: str | None = None, at_least_ms: int = 0, too_short: str = "") -> BeforeValidator:
    """Milliseconds, from `at_least_ms` (inclusive) to a year. `missing`: the consequence of no value; None: null is a value."""

    def check(value: object) -> int | None:
        if value is None and missing is None:
            return None
        if value is None:
            raise ValueError(f"missing; {missing}")
        duration = parse_duration(value)
        if duration < at_least_ms:
            raise ValueError(f"must be at least {too_short}")
        return duration

    return BeforeValidator(check)


def number(of: type[int] | type[float], least: float, most: float | None = None, otherwise: str = "") -> BeforeValidator:
    """A number between two bounds, both inclusive."""
    what = f"a {'whole ' if of is int else ''}number from {least}{'' if most is None else f' to {most}'}{otherwise}"

    def check(value: Any) -> float:
        is_number = isinstance(value, int if of is int else int | float) and not isinstance(value, bool)
        if not is_number or not least <= value or not (most is None or value <= most):
            raise ValueError(f"{value!r} is not {what}")
        return of(value)

    return BeforeValidator(check)


def cron(otherwise: str = "", *also: str | None) -> BeforeValidator:
    """A cron expression of five fields, or one of the values in `also`."""

    def check(value: object) -> object:
        if value in also or (isinstance(value, str) and _comes_round(value)):
            return value
        raise ValueError(f"{value!r} is no cron expression of five fields that ever comes round{otherwise}")

    return BeforeValidator(check)


def mapping(of: type, missing: str) -> BeforeValidator:
    """The settings of a dataclass. `missing`: the error where there is no mapping."""

    def check(value: object) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise ValueError(missing)
        return required_keys(of) | value

    return BeforeValidator(check)


def file_key(field: str) -> str:
    """The key in the file from which a field is read; inner keys of `output` are fields of the pipeline."""
    of_output = field.removeprefix("output_")
    return "file name" if field == "name" else f"output.{of_output}" if of_output != field else field.removesuffix("_ms")


def required_keys(of: type) -> dict[str, None]:
    """The keys of the fields without a default, each with None: its check then refuses what the file does not say."""
    return {file_key(field.name): None for field in fields(of) if field.default is field.default_factory is MISSING}


def _comes_round(text: str) -> bool:
    try:
        croniter(text).get_next()
    except CroniterError:
        return False
    # croniter also accepts @daily and a field of seconds.
    return len(text.split()) == 5


def _name(value: str) -> str:
    if not _PIPELINE_NAME.fullmatch(value):
        raise ValueError("a pipeline is named after its file, in lower-case letters, digits and underscores")
    for suffix in (REPLAY_SUFFIX, MAINTENANCE_SUFFIX):
        if value.endswith(suffix):
            raise ValueError(f"{value} would be the name of another pipeline's {suffix[1:]} DAG; name it otherwise")
    return value


def _topic(value: object) -> str:
    if not isinstance(value, str) or not _TOPIC_NAME.fullmatch(value) or value in (".", ".."):
        raise ValueError(f"{value!r} is no Kafka topic name (1 to 249 of letters, digits, '.', '_', '-')")
    if value.startswith(INTERNAL):
        raise ValueError(f"{value!r} is a topic that Kafka keeps for itself; name one of your own")
    return value


def _topics(value: object) -> str | tuple[str, ...] | None:
    """One name, or several in alphabetical order; None where a pattern may stand for them."""
    if value is None:
        return None
    if not isinstance(value, list):
        return _topic(value)
    names = tuple(sorted(map(_topic, value)))
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{value!r} is no list of topics, each once; write [calls-eu, calls-us]")
    return names if len(names) > 1 else names[0]


def _field(value: object) -> str:
    if not isinstance(value, str) or not _COLUMN_NAME.fullmatch(value):
        raise ValueError(f"{value!r} cannot name a column (letters, digits, underscore; at most 64)")
    return value


def _column(value: object) -> str:
    name = _field(value)
    if name.lower() in RESERVED_COLUMNS:
        raise ValueError(f"{value!r} is a column the tables need for themselves; rename the field at the producer")
    return name


def _columns(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("missing; list the body fields that identify a pair, or no two events could meet")
    return tuple(map(_column, value))


def _key_sources(value: object) -> tuple[tuple[str, str], ...]:
    """Key field and its source, by field."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} names no key fields; write {{user1: call.caller.id, …}}")
    named = tuple(sorted((_column(name), _source(where)) for name, where in value.items()))
    if any(parse_source(where) == (VALUE, ()) for _, where in named):
        raise ValueError("$value is a whole message; name a field of it")
    return named


def _only(value: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Source and allowed texts, by source."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} selects nothing; write {{type: call_ended}}, or leave the key out")
    if any(parse_source(where) == (VALUE, ()) for where in value):
        raise ValueError("$value is a whole message, and no two are the same; name a field of it")
    return tuple(sorted((_source(where), _texts(where, allowed)) for where, allowed in value.items()))


def _texts(where: object, allowed: object) -> tuple[str, ...]:
    values = allowed if isinstance(allowed, list) else [allowed]
    if not values or not all(isinstance(each, str | int | bool) for each in values):
        raise ValueError(f"{where}: {allowed!r} is no text, whole number, true or false, nor a list of them")
    # As JSON spells them.
    return tuple(sorted(str(each).lower() if isinstance(each, bool) else str(each) for each in values))


def _source(value: object) -> str:
    """A source that may be a text; raises ValueError."""
    if parse_source(value).part == RECORD_TIME:
        raise ValueError(f"{value!r} is a time")
    return str(value)


def _key_text(value: object) -> tuple[str, ...]:
    steps = ("integers", "trim", "lower", "upper")
    if not isinstance(value, list) or not all(each in steps for each in value) or len(set(value)) != len(value):
        raise ValueError(f"{value!r} is no list of {', '.join(steps)}, each at most once")
    if {"lower", "upper"} <= set(value):
        raise ValueError("lower and upper contradict each other; write one of them")
    return tuple(step for step in steps if step in value)


def _message(value: object) -> object:
    if value is not None and not (isinstance(value, str) and _MESSAGE_NAME.fullmatch(value)):
        raise ValueError(f"{value!r} is no full name of a Protobuf message like calls.v1.CallEnded")
    return value


def _severities(value: object) -> tuple[tuple[str, str], ...]:
    """Check and its severity, by check."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} names no checks; write {{orphan_ratio: fail, …}}")
    for check, severity in value.items():
        if check not in JUDGED:
            raise ValueError(f"{check!r} is none of {', '.join(JUDGED)}; a law always fails")
        if severity not in (WARN, FAIL):
            raise ValueError(
                f"{check}: {severity!r} is neither {WARN} nor {FAIL}; nobody would know whether the run is to fail"
            )
    return tuple(sorted(value.items()))


def _connection(value: object) -> str:
    if not isinstance(value, str) or not _CONNECTION_NAME.fullmatch(value):
        raise ValueError(f"{value!r} cannot be the id of an Airflow connection (1 to 250 of letters, digits, '.', '_', '-')")
    return value


def _addresses(value: object) -> tuple[str, ...]:
    """One e-mail address, or several."""
    given = value if isinstance(value, list) else [value]
    for each in given:
        if not _is_address(each):
            raise ValueError(f"{each!r} is no e-mail address; write oncall@example.com, or a list of such")
    return tuple(given)


def _is_address(value: object) -> bool:
    """Whether a header of a mail reads the text as one address and nothing more."""
    if not isinstance(value, str) or not value.isprintable() or set(value) & set(' ,;:<>()"'):
        return False
    return value.count("@") == 1 and all(value.split("@"))


def _group(value: object) -> object:
    is_name = isinstance(value, str) and _TOPIC_NAME.fullmatch(value) and not _PUBLISHER_GROUP.fullmatch(value)
    if value is not None and not is_name:
        allowed = "1 to 249 of letters, digits, '.', '_', '-', and not the group of a publisher"
        raise ValueError(f"{value!r} cannot show what was landed ({allowed})")
    return value


def _output_fields(value: object) -> tuple[tuple[str, str], ...] | None:
    """Name and source, in the order of the file."""
    if value is None:
        return None
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{value!r} names no field, so messages would be empty; write {{caller: user1, at: ts, …}}")
    return tuple((_field(name), str(source)) for name, source in value.items())


def _folder(value: object) -> object:
    if value is not None and not (isinstance(value, str) and value.startswith("/") and value.isprintable()):
        raise ValueError(f"{value!r} is no absolute path of a folder; files would go to wherever a job happens to run")
    return value


PipelineName = Annotated[str, BeforeValidator(_name)]
Topic = Annotated[str, BeforeValidator(_topic)]
Topics = Annotated[str | tuple[str, ...] | None, BeforeValidator(_topics)]
TopicPattern = Annotated[str | None, BeforeValidator(check_topic_pattern)]
# `Field`: of a message's body; `Column`: one that also names a column of the tables.
Field = Annotated[str, BeforeValidator(_field)]
Column = Annotated[str, BeforeValidator(_column)]
Columns = Annotated[tuple[str, ...], BeforeValidator(_columns)]
Source = Annotated[str | None, BeforeValidator(lambda value: None if value is None else _source(value))]
KeySources = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_key_sources)]
KeyText = Annotated[tuple[str, ...], BeforeValidator(_key_text)]
Only = Annotated[tuple[tuple[str, tuple[str, ...]], ...], BeforeValidator(_only)]
TimeSource = Annotated[str, BeforeValidator(check_time_source)]
# Of one side; None is that of the pipeline.
OwnTimeSource = Annotated[str | None, BeforeValidator(lambda value: None if value is None else check_time_source(value))]
TimeFormat = Annotated[str | None, BeforeValidator(check_time_format)]
TimeZone = Annotated[str | None, BeforeValidator(check_zone)]
OtherTopic = Annotated[str | None, BeforeValidator(lambda value: None if value is None else _topic(value))]
OutputFields = Annotated[tuple[tuple[str, str], ...] | None, BeforeValidator(_output_fields)]
MessageName = Annotated[str | None, BeforeValidator(_message)]
Connection = Annotated[str, BeforeValidator(_connection)]
# Of a channel that alerts are sent to; None: they are not.
OtherConnection = Annotated[str | None, BeforeValidator(lambda value: None if value is None else _connection(value))]
Addresses = Annotated[tuple[str, ...], BeforeValidator(_addresses)]
Group = Annotated[str | None, BeforeValidator(_group)]
Severities = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_severities)]
Flag = Annotated[bool, Strict()]
Folder = Annotated[str | None, BeforeValidator(_folder)]
Duration = Annotated[int, duration(DEFAULT)]
Age = Annotated[int | None, duration()]
