"""Compounds on a topic on which others may write, too."""

from types import SimpleNamespace

from spark_jobs.story import output_topic
from spark_jobs.story.output_topic import Stretch, find


def test_decoded_headers_strangers_are_no_revisions(monkeypatch):
    pair = ("pair-id", b"calls-0-1")
    headers = [
        [pair, ("revision", b"2")],
        [pair, ("revision", b"2" * 5_000)],
        [pair, ("revision", "\u0662".encode())],
        [pair, ("revision", b"02")],
        [pair, ("revision", b"\xff")],
        [pair, ("revision", None)],
        [pair],
        None,
        [pair, ("revision", b"2")],
    ]
    messages = [SimpleNamespace(headers=lambda h=h: h, offset=lambda at=at: at) for at, h in enumerate(headers)]
    monkeypatch.setattr(output_topic, "Consumer", lambda _: SimpleNamespace(assign=lambda _: None, close=lambda: None))
    # Real messages come from the client only.
    monkeypatch.setattr(output_topic, "decoded_headers", lambda given: ([each.headers() for each in given], []))
    monkeypatch.setattr(output_topic, "_offset_at", lambda *_: 0)
    monkeypatch.setattr(output_topic, "read_messages", lambda *_: iter(messages))
    now = SimpleNamespace(end={("out", 0): 9})
    assert find({}, "out", now, {Stretch(0, 0, None): [("calls-0-1", 2)]}) == {("calls-0-1", 2): [0, 8]}
