"""What DAGs and jobs both use: the settings of pipelines, the place of their tables, and the values of secrets."""
