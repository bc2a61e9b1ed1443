"""Named places at which a test can stop a job and kill it.

With PAIRING_FAULT_DIR set and a file `<name>.armed` in it, the job that comes to the point writes `<name>.reached` and
stands still until it is killed. Without the variable, as in production, a point does nothing.
"""

import os
import time
from pathlib import Path


def fault_point(name: str) -> None:
    """Stands still here for ever if the point is armed."""
    folder = os.environ.get("PAIRING_FAULT_DIR")
    if folder and Path(folder, f"{name}.armed").exists():
        Path(folder, f"{name}.reached").write_text(str(os.getpid()))
        while True:
            time.sleep(1)
