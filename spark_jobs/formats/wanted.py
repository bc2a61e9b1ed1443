"""Which fields of a record are needed: a tree of their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

# Name of a field -> what is needed of its value; nothing in it: the whole value.
Tree: TypeAlias = Mapping[str, "Tree"]


def is_wanted(name: str, wanted: Tree | None) -> bool:
    """
    >>> is_wanted("a", None), is_wanted("a", {}), is_wanted("a", {"a": {}}), is_wanted("b", {"a": {}})
    (True, True, True, False)
    """
    return not wanted or name in wanted


def below(name: str, wanted: Tree | None) -> Tree | None:
    """What is needed of the value of a wanted field; None: all of it.

    >>> below("a", {"a": {"x": {}}}), below("a", {"a": {}}), below("a", None)
    ({'x': {}}, None, None)
    """
    return (wanted.get(name) or None) if wanted else None
