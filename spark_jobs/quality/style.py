"""How pages look, in the light and in the dark."""

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 2rem; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid #8886; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
th[scope=row] { font-weight: normal; }
svg { width: 100%; height: auto; overflow: visible; } svg text { font-size: 11px; fill: currentColor; } svg .floor { stroke: #8888; }
svg .a { fill: #0969da; } svg .b { fill: #bf5f00; } svg .c { fill: #8886; }
svg .line { fill: none; stroke: #0969da; stroke-width: 2; } svg .mark { stroke: currentColor; stroke-dasharray: 4 3; }
.passed { color: #1a7f37; } .warning { color: #9a6700; } .critical { color: #cf222e; }
@media (prefers-color-scheme: dark) { .passed { color: #3fb950; } .warning { color: #d29922; } .critical { color: #ff7b72; }
  svg .a { fill: #58a6ff; } svg .b { fill: #f0883e; } svg .line { stroke: #58a6ff; } }
"""
