"""Writes docs/pairing/*.svg:  python -m tests.draw_timelines"""

from tests.draw_timelines.pictures import FOLDER, drawings

if __name__ == "__main__":
    made = drawings()
    for path in set(FOLDER.glob("*.svg")) - set(made):
        path.unlink()
    for path, svg in made.items():
        path.write_text(svg, encoding="utf-8")
        print(path.relative_to(FOLDER.parents[1]))
