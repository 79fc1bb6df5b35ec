"""Types of numpy arrays, by what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Array", "BoolArray", "FloatArray", "IntArray"]

Array = np.ndarray[Any, Any]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
FloatArray = np.ndarray[Any, np.dtype[np.floating[Any]]]
IntArray = np.ndarray[Any, np.dtype[np.integer[Any]]]
