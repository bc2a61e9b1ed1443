"""Files of pipelines with every setting in them, as an operator would write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from include.config.pipeline import Pipeline
from include.config.setting_changes import setting_values


def file_of(pipeline: Pipeline, folder: Path) -> Path:
    """Writes the pipeline's file into the folder, which is made."""
    document: dict[str, Any] = {}
    for key, text in setting_values(pipeline).items():
        outer, _, inner = key.partition(".")
        # A leading star means something else in YAML.
        value = text if text.startswith("*") else yaml.safe_load(text)
        if inner:
            document.setdefault(outer, {})[inner] = value
        else:
            document[outer] = value
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{pipeline.name}.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file
