"""Draws timelines as SVG for docs/pairing.md, from the cases that the tests play and from what the rules answer to them."""
