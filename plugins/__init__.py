"""What Airflow registers of this project, and nothing else."""
