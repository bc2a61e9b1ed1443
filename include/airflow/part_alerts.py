"""Alerts about parts of the platform that are down: each is told of once, and once more when it is back.

The API server and the triggerer look, each in a thread: each of both sees the other, and both see everything else. A row in Airflow's
variables says of a part that it was told of, so only one of them tells, also after it was started again. plugins/event_pairing.py registers
this module as the listener by which the triggerer starts to look; the API server does when it starts to serve include/airflow/parts_app.py.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection
from threading import Thread
from typing import Any, Protocol

from airflow.listeners import hookimpl

from include.airflow.alerts import alert
from include.airflow.parts import Part, parts

DOWN_VARIABLE = "PAIRING_PART_DOWN_S"
_DOWN_S = 120.0
# The triggerer forks once when it has started: nothing is done before then that a fork could tear apart.
_EVERY_S = 15.0
_KEY = "pairing_part_is_down: "

_log = logging.getLogger(__name__)


class AlertMemory(Protocol):
    """The names of the parts of which it was told that they are down."""

    def names(self) -> Collection[str]: ...

    def add(self, name: str, text: str) -> bool:
        """False if another process has just done it."""

    def remove(self, name: str) -> bool:
        """False if another process has just done it."""


class PartWatch:
    """Tells of a part that was down for `down_s` seconds at every look."""

    def __init__(self, memory: AlertMemory, down_s: float) -> None:
        self._memory, self._down_s = memory, down_s
        self._since: dict[str, float] = {}

    def look(self, found: list[Part], at: float) -> None:
        """Takes note of the parts at the moment `at` (seconds), and tells what is new."""
        announced = self._memory.names()
        for part in found:
            since = self._since.pop(part.name, at)
            if part.ok:
                if part.name in announced and self._memory.remove(part.name):
                    parts = {"part": part.name, "severity": "warning", "reason": part.text}
                    alert(f"{part.name} is up again: {part.text}", is_over=True, **parts)
                continue
            self._since[part.name] = since
            if at - since >= self._down_s and part.name not in announced and self._memory.add(part.name, part.text):
                alert(f"{part.name} is down: {part.text}", part=part.name, reason=part.text)
        # Of a cluster that no pipeline names any more.
        for name in {*announced} - {part.name for part in found}:
            self._memory.remove(name)


class AlertMemoryInDatabase:
    """The names as variables of Airflow, which are there once and outlive every process."""

    def names(self) -> Collection[str]:
        from airflow.models.variable import Variable
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            keys = session.scalars(select(Variable.key).where(Variable.key.startswith(_KEY, autoescape=True)))
            return {str(key).removeprefix(_KEY) for key in keys}

    def add(self, name: str, text: str) -> bool:
        from airflow.models.variable import Variable
        from airflow.utils.session import create_session
        from sqlalchemy.exc import IntegrityError

        try:
            with create_session() as session:
                session.add(Variable(f"{_KEY}{name}", text, "An alert has told of it; another one will when it is up again"))
        except IntegrityError:
            return False
        return True

    def remove(self, name: str) -> bool:
        from airflow.models.variable import Variable
        from airflow.utils.session import create_session
        from sqlalchemy import delete

        with create_session() as session:
            gone: Any = session.execute(delete(Variable).where(Variable.key == f"{_KEY}{name}"))
            return bool(gone.rowcount)


@hookimpl
def on_starting(component: Any) -> None:
    """Called when the scheduler, the DAG processor or the triggerer starts, and in a task's process."""
    if getattr(component, "job_type", None) == "TriggererJob":
        start_watch()


def start_watch() -> None:
    """Begins to look, for as long as this process lives."""
    Thread(target=_watch, name="part watch", daemon=True).start()


def _watch() -> None:
    watch = PartWatch(AlertMemoryInDatabase(), _down_s())
    while True:
        time.sleep(_EVERY_S)
        try:
            watch.look(parts(), time.monotonic())
        except Exception as error:
            # Without the database nobody knows what was told. Its text may hold the address.
            _log.warning("what is down could not be told: %s", type(error).__name__)


def _down_s() -> float:
    text = os.environ.get(DOWN_VARIABLE) or str(_DOWN_S)
    try:
        return float(text)
    except ValueError:
        _log.warning("%s=%s is no number of seconds: %g is used", DOWN_VARIABLE, text, _DOWN_S)
        return _DOWN_S
