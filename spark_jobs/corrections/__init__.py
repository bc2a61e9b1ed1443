"""Going back to an earlier batch: which one may be chosen, what goes, and how it is corrected for those who have seen it."""
