"""Schemas that records have named, kept beside the tables: they stay readable while the registry is away."""

from __future__ import annotations

from include.config.store import Store, list_names, read_text, write_text

# Below the pipeline's folder. No table has this name: those of payloads begin with raw_.
SCHEMAS = "known_schemas"


# Then one look at all names takes the place of many requests. Producers choose the ids, and each unknown one would be a request of its own.
_MISSES = 20


class KnownSchemas:
    """What a name holds never changes, so any number of jobs and workers may write it."""

    def __init__(self, place: Store) -> None:
        self._place, self._misses = place, 0
        self._names: set[str] | None = None

    def read(self, name: str) -> bytes | None:
        """The content under the name, None if there is none."""
        if self._names is not None and name not in self._names:
            return None
        text = read_text(self._place, name)
        if text is None:
            self._misses += 1
            if self._misses == _MISSES:
                self._names = set(list_names(self._place))
            return None
        return text.encode()

    def write(self, name: str, content: bytes) -> None:
        """Keeps the content under the name."""
        write_text(self._place, name, content.decode())
        if self._names is not None:
            self._names.add(name)
