"""Every edge of the rules as a timeline beside its neighbour. T = 100, G = 200, R = 500, max_session = 1000, max_future = 10000,
all in ms: a session that ends at 0 is over when the clock is beyond 700. The names read as sentences; docs/pairing.md draws them."""

from tests.helpers.timeline import Timeline

FAR = 1_000_000
OVER = 700

TOLERANCE = {
    "T apart is a pair": Timeline([("a0 m100", FAR)], ["1 pair a0 m100"]),
    "T + 1 apart is two orphans": Timeline([("a0 m101", FAR)], ["1 left_only a0", "1 right_only m101"]),
    "T apart is a pair with the right side first, too": Timeline([("m0 a100", FAR)], ["1 pair a100 m0"]),
    "T + 1 apart is two orphans with the right side first, too": Timeline(
        [("m0 a101", FAR)], ["1 left_only a101", "1 right_only m0"]
    ),
    "a side alone is an orphan": Timeline([("a0", FAR)], ["1 left_only a0"]),
    "with T 0 only equal times are a pair": Timeline(
        [("a0 m0 a150 m151", FAR)], ["1 left_only a150", "1 pair a0 m0", "1 right_only m151"], {"tolerance_ms": 0}
    ),
    "T longer than G does not reach over a gap": Timeline(
        [("a0 m201", FAR)], ["1 left_only a0", "1 right_only m201"], {"tolerance_ms": 1_000}
    ),
}

GAP = {
    "a gap apart is one session, which waits for the later event": Timeline(
        [("a0 m200", OVER + 1)], ["open a0", "open m200"]
    ),
    "a gap + 1 apart is two sessions, and the first closes alone": Timeline(
        [("a0 m201", OVER + 1)], ["1 left_only a0", "open m201"]
    ),
}

GRACE = {
    "a clock 1 ms before the end of grace leaves the session open": Timeline(
        [("a0 m50", 50 + OVER - 1)], ["open a0", "open m50"]
    ),
    "a clock at the end of grace leaves the session open": Timeline([("a0 m50", 50 + OVER)], ["open a0", "open m50"]),
    "a clock 1 ms past the end of grace closes the session": Timeline([("a0 m50", 50 + OVER + 1)], ["1 pair a0 m50"]),
    "the other half comes while the session is open": Timeline([("a0", 100), ("m50", FAR)], ["2 pair a0 m50"]),
    "silence closes a session": Timeline([("a0 m5", 10), ("", FAR)], ["2 pair a0 m5"]),
    "without grace a session is over after its gap": Timeline([("a0", 201)], ["1 left_only a0"], {"grace_ms": 0}),
    "without grace a session is open at the end of its gap": Timeline([("a0", 200)], ["open a0"], {"grace_ms": 0}),
}

LATE = {
    "late by 0 ms is in time": Timeline([("", OVER), ("a0", FAR)], ["2 left_only a0"]),
    "late by 1 ms is late": Timeline([("", OVER + 1), ("a0", FAR)], ["2 late a0"]),
    "an old event within a gap of an open one is rescued": Timeline([("a100", OVER + 1), ("m0", FAR)], ["2 pair a100 m0"]),
    "an old event a gap + 1 from an open one is late": Timeline(
        [("a201", OVER + 1), ("m0", FAR)], ["2 late m0", "2 left_only a201"]
    ),
    "a half that comes too late is late, and the other stands alone": Timeline(
        [("a0", 50 + OVER + 1), ("m50", FAR)], ["1 left_only a0", "2 late m50"]
    ),
    "a half that comes 1 ms before that is in time, and both stand alone": Timeline(
        [("a0", 50 + OVER), ("m50", FAR)], ["1 left_only a0", "2 right_only m50"]
    ),
    "old events that reach into open time are in time together": Timeline(
        [("", OVER + 1), ("a0 m50 a200", FAR)], ["2 left_only a200", "2 pair a0 m50"]
    ),
    "a first batch has no late events": Timeline([("a0 m50", FAR)], ["1 pair a0 m50"]),
}

FUTURE = {
    "max_future ahead of the wall clock is accepted": Timeline([("a10000", 0), ("", FAR)], ["2 left_only a10000"]),
    "max_future + 1 ahead of the wall clock is future": Timeline([("a10001", 0), ("", FAR)], ["1 future a10001"]),
    "one event stamped ten years ahead harms nobody": Timeline(
        [("a0 a315360000000 m5", 10), ("a300 m310", 2_000), ("", 4_000)],
        ["1 future a315360000000", "2 pair a0 m5", "2 pair a300 m310"],
    ),
}

DUPLICATES = {
    "a duplicate in its batch is dropped": Timeline([("a0=x a0=x m5", FAR)], ["1 duplicate a0=x", "1 pair a0=x m5"]),
    "a duplicate of an open event is dropped": Timeline(
        [("a0=x", 10), ("a0=x m5", FAR)], ["2 duplicate a0=x", "2 pair a0=x m5"]
    ),
    "a duplicate of a closed event is late": Timeline(
        [("a0=x m5", 5 + OVER + 1), ("a0=x", FAR)], ["1 pair a0=x m5", "2 late a0=x"]
    ),
    "a duplicate of a closed event within a gap of an open one is an event again": Timeline(
        [("a0=x a201", OVER + 1), ("a0=x m100", FAR)],
        ["1 left_only a0=x", "2 left_only a201", "2 pair a0=x m100"],
    ),
    "another timestamp is no duplicate": Timeline([("a0=x a1=x", FAR)], ["1 left_only a0=x", "1 left_only a1=x"]),
    "another payload is no duplicate": Timeline([("a0=x a0=y", FAR)], ["1 left_only a0=x", "1 left_only a0=y"]),
    "another key is no duplicate": Timeline([("a0:w=x a0:z=x", FAR)], ["1 left_only a0:w=x", "1 left_only a0:z=x"]),
    "the same on the other side is no duplicate": Timeline([("a0=x m0=x", FAR)], ["1 pair a0=x m0=x"]),
    "drop_duplicates: false keeps both": Timeline(
        [("a0=x a0=x m5", FAR)], ["1 left_only a0=x", "1 pair a0=x m5"], {"drop_duplicates": False}
    ),
}

MAX_SESSION = {
    "a chain of exactly max_session is one session": Timeline(
        [("a0 a200 a400 a600 a800 a1000", 800 + OVER + 1)],
        ["open a0", "open a1000", "open a200", "open a400", "open a600", "open a800"],
    ),
    "a chain of max_session + 1 is cut before the event beyond": Timeline(
        [("a0 a200 a400 a600 a800 a1001", 800 + OVER + 1)],
        ["1 left_only a0", "1 left_only a200", "1 left_only a400", "1 left_only a600", "1 left_only a800", "open a1001"],
    ),
    "a cut separates what would be a pair": Timeline(
        [("a0 a200 a400 a600 a800 a1000 m1001", FAR)],
        sorted([*(f"1 left_only a{at}" for at in range(0, 1001, 200)), "1 right_only m1001"]),
    ),
    "1 ms less and it is a pair": Timeline(
        [("a0 a200 a400 a600 a800 a1000 m1000", FAR)],
        sorted([*(f"1 left_only a{at}" for at in range(0, 1000, 200)), "1 pair a1000 m1000"]),
    ),
}

MATCHING = {
    "two calls in a chain stay two": Timeline([("a0 m5 a150 m155", FAR)], ["1 pair a0 m5", "1 pair a150 m155"]),
    "ten calls in a chain stay ten": Timeline(
        [(" ".join(f"a{at} m{at + 5}" for at in range(0, 900, 90)), FAR)],
        sorted(f"1 pair a{at} m{at + 5}" for at in range(0, 900, 90)),
    ),
    "the one between goes to the nearer": Timeline([("m0 a60 m100", FAR)], ["1 pair a60 m100", "1 right_only m0"]),
    "as near to both it goes to the earlier": Timeline([("m0 a50 m100", FAR)], ["1 pair a50 m0", "1 right_only m100"]),
    "more pairs win over nearer ones": Timeline([("a0 m90 a100 m190", FAR)], ["1 pair a0 m90", "1 pair a100 m190"]),
    "pairs do not cross": Timeline([("a0 a10 m90 m95", FAR)], ["1 pair a0 m90", "1 pair a10 m95"]),
}

COLLAPSE = {
    "collapse makes one compound of a session": Timeline(
        [("m0 a150 m160 a170", FAR)], ["1 pair a150 m0"], {"matching": "collapse"}
    ),
    "one_to_one makes a compound of each event": Timeline(
        [("m0 a150 m160 a170", FAR)], ["1 left_only a170", "1 pair a150 m160", "1 right_only m0"]
    ),
    "collapse of one side keeps the first": Timeline([("a50 a0 a20", FAR)], ["1 left_only a0"], {"matching": "collapse"}),
}

KEYS_AND_TIMES = {
    "another first user is another pair": Timeline([("a0:u m0:x", FAR)], ["1 left_only a0:u", "1 right_only m0:x"]),
    "both users swapped are another pair": Timeline([("a0:u-v m0:v-u", FAR)], ["1 left_only a0:u-v", "1 right_only m0:v-u"]),
    "with key_order any both users swapped are the same pair": Timeline(
        [("a0:u-v m0:v-u", FAR)], ["1 pair a0:u-v m0:v-u"], {"key_order": "any"}
    ),
    "with key_order any, too, another user is another pair": Timeline(
        [("a0:u-v m0:v-x", FAR)], ["1 left_only a0:u-v", "1 right_only m0:v-x"], {"key_order": "any"}
    ),
    "with key_order any the swapped side comes while the session is open": Timeline(
        [("a0:v-u", OVER), ("m50:u-v", FAR)], ["2 pair a0:v-u m50:u-v"], {"key_order": "any", "grace_ms": 700}
    ),
    "with key_order any calls in both directions are in one session and stay two": Timeline(
        [("a0:u-v a0:v-u m5:u-v m6:v-u", FAR)], ["1 pair a0:u-v m5:u-v", "1 pair a0:v-u m6:v-u"], {"key_order": "any"}
    ),
    "a null timestamp takes the record's": Timeline(
        [("a~50 m150 a~350 m451", FAR)], ["1 left_only a~350", "1 pair a~50 m150", "1 right_only m451"]
    ),
    "a null timestamp can be late": Timeline([("", OVER + 1), ("a~0", FAR)], ["2 late a~0"]),
}

GROUPS = (TOLERANCE, GAP, GRACE, LATE, FUTURE, DUPLICATES, MAX_SESSION, MATCHING, COLLAPSE, KEYS_AND_TIMES)
TIMELINES: dict[str, Timeline] = {name: case for group in GROUPS for name, case in group.items()}
