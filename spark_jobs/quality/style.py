"""How pages look, in the light and in the dark."""

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 2rem; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid #8886; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.passed { color: #1a7f37; } .warning { color: #9a6700; } .critical { color: #cf222e; }
@media (prefers-color-scheme: dark) { .passed { color: #3fb950; } .warning { color: #d29922; } .critical { color: #ff7b72; } }
"""
