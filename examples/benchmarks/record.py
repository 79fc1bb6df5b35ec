"""Writes the result of a benchmark to a JSON file; imports only ``machine`` of the scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import machine


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Write a result and a description of the machine; None as path writes nothing."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result | {"machine": machine.describe()}, indent=2)
        path.write_text(text + "\n", encoding="utf-8")
