"""What new settings of a pipeline would change, told before a job applies them: settings, topics, events that are open now."""
