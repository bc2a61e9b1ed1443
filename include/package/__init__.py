"""The project as a package for other Airflows: how pip builds it, and what it registers. docs/package.md describes it."""
