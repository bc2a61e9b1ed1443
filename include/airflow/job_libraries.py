"""Importing this imports what jobs need: for Celery's workers, whose setting `imports` names modules to import before they fork."""

from include.airflow.forked_jobs import import_for_jobs

import_for_jobs()
