"""The lease of a task: an object in a store, by which a driver on another machine knows that its task lives.

The task replaces its text every few seconds and deletes it at its end. Where the task's process or machine dies, the text stays as it is.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from include.config.repeating import repeating
from include.config.store import Store, read_text, write_text

RENEWED_EVERY_S = 5.0
# Longer than a store throttles requests.
EXPIRES_AFTER_S = 60.0


@contextmanager
def held(store: Store, name: str) -> Iterator[None]:
    """Holds the lease while the block runs. Raises obstore's BaseError or OSError where the store does not take it."""
    import obstore
    from obstore.exceptions import BaseError

    numbers = itertools.count(1)

    def renew() -> None:
        # The next turn is another try.
        with suppress(BaseError, OSError):
            write_text(store, name, str(next(numbers)))

    write_text(store, name, str(next(numbers)))
    try:
        with repeating(renew, RENEWED_EVERY_S):
            yield
    finally:
        # Without this it expires.
        with suppress(BaseError, OSError):
            obstore.delete(store.client, name)


def wait_for_end(store: Store, name: str) -> None:
    """Returns when the lease is not there, or nobody has renewed it for EXPIRES_AFTER_S. A store that gives no answer says nothing."""
    from obstore.exceptions import BaseError

    text, since = "", time.monotonic()
    while time.monotonic() - since < EXPIRES_AFTER_S:
        try:
            found = read_text(store, name)
        except (BaseError, OSError):
            since = time.monotonic()
        else:
            if found is None:
                return
            if found != text:
                text, since = found, time.monotonic()
        time.sleep(RENEWED_EVERY_S)
