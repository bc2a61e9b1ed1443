"""The settings of pipelines, the place of their tables, secrets: what DAGs and jobs both read."""
