"""A partition whose log really loses its end, as by an unclean election of its leader or a backup that was put back."""

from __future__ import annotations

from collections.abc import Iterator

from include.local.broker import LocalBroker


def batch_starts(log: bytes) -> Iterator[int]:
    """Where the batches of a log begin: each has its offset in 8 bytes, then in 4 how many bytes follow."""
    at = 0
    while at < len(log):
        yield at
        at += 12 + int.from_bytes(log[at + 8 : at + 12], "big")


def cut_log(broker: LocalBroker, topic: str, partition: int, until: int) -> None:
    """Restarts the broker without the batches of the partition from that offset on; they must not have begun before it."""
    broker.kill()
    folder = broker.folder / "data" / f"{topic}-{partition}"
    (log,) = folder.glob("*.log")
    batches = log.read_bytes()
    starts = [at for at in batch_starts(batches) if int.from_bytes(batches[at : at + 8], "big") >= until]
    assert starts and int.from_bytes(batches[starts[0] : starts[0] + 8], "big") == until
    log.write_bytes(batches[: starts[0]])
    for derived in (*folder.glob("*.snapshot"), *folder.glob("*.*index")):
        derived.unlink()
    broker.start()
