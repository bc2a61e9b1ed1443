"""One pair's story from the tables of a pipeline: what is read, what is told."""
