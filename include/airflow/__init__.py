"""The parts of the DAGs: operators, trigger, schedule, parameters, texts, alerts."""
