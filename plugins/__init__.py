"""Airflow's own: the operator that submits the jobs, and the quality pages in Airflow's web server."""
