"""Writes what a benchmark found to a JSON file; imports nothing of the other scripts but one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import machine


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Write a result and the machine it was found on; None writes nothing."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result | {"machine": machine.describe()}, indent=2)
        path.write_text(text + "\n", encoding="utf-8")
