"""Why a message ends in `rejected_events`: the reasons in the order in which they are checked; the first that applies counts."""

from enum import StrEnum
from typing import Final, Self


class Reason(StrEnum):
    """A reason, with its meaning as reports print it."""

    sentence: str

    # To mypy, looking up a reason by its text is a call of this, too, so the sentence has a default.
    def __new__(cls, value: str, sentence: str = "") -> Self:
        """Makes the text of a reason out of its name alone."""
        reason = str.__new__(cls, value)
        reason._value_, reason.sentence = value, sentence
        return reason

    RETRACTION = "retraction", "it takes a compound of another pipeline back, and is no event itself"
    UNKNOWN_SCHEMA = "unknown_schema", "the registry does not know the schema that the record names"
    UNDECODABLE = "undecodable", "the value is no message of its schema, or names no schema"
    MALFORMED_JSON = "malformed_json", "the value is not exactly one JSON object in UTF-8"
    MISSING_KEY = "missing_key", "a key field is absent, empty or not a string"
    BAD_TIMESTAMP = "bad_timestamp", "the timestamp is not what timestamp_format says, or not from 0 to 2^63 - 1 ms"
    FUTURE = "future", "the timestamp is further ahead of the wall clock than max_future"
    NOT_COMPOUND = "not_compound", "the record lacks the headers of a compound: pair-id, revision and op"
    BAD_HEADER = "bad_header", "the record has a header whose name is not UTF-8"
    SUPERSEDED = "superseded", "a later revision of the same compound has landed"
    DUPLICATE = "duplicate", "an event with the same side, key, timestamp and payload is already there"
    LATE = "late", "its session was over, grace included, before the previous batch's clock"


# The `problem` of a landed record that `only` does not select. It is none of the pipeline's, so it is not rejected.
FILTERED: Final = "filtered"
# The `problem` of a raw row that an erasure emptied, unless it is FILTERED: whatever the row was, nothing reads it as an event again.
ERASED: Final = "erased"
# Found in a message alone; the other reasons need the events around it.
AT_LANDING = (
    Reason.RETRACTION,
    Reason.UNKNOWN_SCHEMA,
    Reason.UNDECODABLE,
    Reason.MALFORMED_JSON,
    Reason.MISSING_KEY,
    Reason.BAD_TIMESTAMP,
    Reason.FUTURE,
    Reason.NOT_COMPOUND,
    Reason.BAD_HEADER,
)
# The reasons for which a message has no key.
WITHOUT_KEY = (Reason.RETRACTION, Reason.UNKNOWN_SCHEMA, Reason.UNDECODABLE, Reason.MALFORMED_JSON, Reason.MISSING_KEY)
AT_PAIRING = (Reason.SUPERSEDED, Reason.DUPLICATE, Reason.LATE)
