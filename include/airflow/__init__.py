"""What the DAGs are made of: operators, schedules, parameters, texts."""
