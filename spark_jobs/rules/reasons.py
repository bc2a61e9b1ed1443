"""Why a message ends in `rejected_events`: the reasons in the order in which they are checked, each with a sentence for reports."""

from enum import StrEnum


class Reason(StrEnum):
    """The first reason that applies counts."""

    MALFORMED_JSON = "malformed_json"
    MISSING_KEY = "missing_key"
    BAD_TIMESTAMP = "bad_timestamp"
    FUTURE = "future"
    BAD_HEADER = "bad_header"
    DUPLICATE = "duplicate"
    LATE = "late"

    @property
    def sentence(self) -> str:
        """Its meaning, as reports print it."""
        return _SENTENCES[self]


_SENTENCES = {
    Reason.MALFORMED_JSON: "the value is not exactly one JSON object in UTF-8",
    Reason.MISSING_KEY: "a key field is absent, empty or not a string",
    Reason.BAD_TIMESTAMP: "the timestamp is not a whole number of milliseconds from 0 to 2^63 - 1",
    Reason.FUTURE: "the timestamp is further ahead of the wall clock than max_future",
    Reason.BAD_HEADER: "the record has a header whose name is not UTF-8",
    Reason.DUPLICATE: "an event with the same side, key, timestamp and payload is already there",
    Reason.LATE: "its session was over, grace included, before the previous batch's clock",
}

# Found in a message alone; the other reasons need the events around it.
AT_LANDING = (Reason.MALFORMED_JSON, Reason.MISSING_KEY, Reason.BAD_TIMESTAMP, Reason.FUTURE, Reason.BAD_HEADER)
# The reasons for which a message has no key.
WITHOUT_KEY = (Reason.MALFORMED_JSON, Reason.MISSING_KEY)
AT_PAIRING = (Reason.DUPLICATE, Reason.LATE)
