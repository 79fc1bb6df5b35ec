"""The table of public names, estimators among them, and the modules that they come from.

``__init__.pyi`` is the table, since type checkers read no other. Nothing that it names is imported
before it is used: torch is loaded with the first use of an estimator.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["ESTIMATORS", "MODULES", "load_name"]


def _read(path: Path) -> dict[str, str]:
    """The public names in a stub file, each with its module."""
    lines = path.read_text(encoding="utf-8").splitlines()
    imports = [line.split() for line in lines if line.startswith("from ")]
    return {name: module for _, module, _, name, *_ in imports}


MODULES = _read(Path(__file__).with_name("__init__.pyi"))
ESTIMATORS = {name: home for name, home in MODULES.items() if home.endswith(".estimator")}


def load_name(name: str) -> Any:
    """The object, or the module, of a public name."""
    home = import_module(MODULES[name])
    if home.__name__ == "skbert":
        return import_module(f"skbert.{name}")
    return getattr(home, name)
