"""A pair's story, taken apart."""

from __future__ import annotations


def about(lines: list[str], headline: str) -> list[str]:
    """The sentences below the headline that begins so, without their indentation."""
    begin = next(number for number, line in enumerate(lines) if line.startswith(headline))
    end = lines.index("", begin) if "" in lines[begin:] else len(lines)
    return [line.removeprefix("  ") for line in lines[begin + 1 : end]]
