"""Quality: what is counted of a batch, what is demanded of the counts, and the pages that show both."""
