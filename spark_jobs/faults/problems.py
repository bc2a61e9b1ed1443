"""Problems that a job reports in one line instead of a stack trace."""


class JobProblem(RuntimeError):
    """Something outside the code is wrong; the text names it and the remedy."""


class NeedsOperator(JobProblem):
    """Trying again cannot help: an operator must change or decide something first."""
