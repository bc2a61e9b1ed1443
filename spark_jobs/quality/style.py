"""How pages look, in the light and in the dark."""

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 2rem; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid #8886; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
th[scope=row] { font-weight: normal; }
td.passed, td.warning, td.critical { white-space: nowrap; }
p.notice { font-weight: 600; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; overflow: visible; } svg text { font-size: 11px; fill: currentColor; } svg .floor { stroke: #8888; }
svg .a { fill: light-dark(#0969da, #58a6ff); } svg .b { fill: light-dark(#bf5f00, #f0883e); } svg .c { fill: #8886; }
svg .line { fill: none; stroke: light-dark(#0969da, #58a6ff); stroke-width: 2; } svg .mark { stroke: currentColor; stroke-dasharray: 4 3; }
@media (max-width: 40rem) { :root { font-size: 14px; } body { margin: 1rem auto; padding: 0 .6rem; } th, td { padding: .3rem; }
  table { display: block; overflow-x: auto; } code, th[scope=row] { overflow-wrap: anywhere; }
  th[scope=col] { font-size: .75rem; } td.critical, td.warning { white-space: normal; } }
.passed { color: light-dark(#1a7f37, #3fb950); } .warning { color: light-dark(#9a6700, #d29922); } .critical { color: light-dark(#cf222e, #ff7b72); }
"""
