"""Problems that a job reports in one line instead of a stack trace."""

from __future__ import annotations

import sys


class JobProblem(RuntimeError):
    """Something outside the code is wrong; the text names it and the remedy."""


class NeedsOperator(JobProblem):
    """Trying again cannot help: an operator must change or decide something first."""


def warn(text: str) -> None:
    """Prints a warning to the log of the task."""
    print(f"warning: {text}", file=sys.stderr)
