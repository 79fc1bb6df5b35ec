"""Predict with an exported estimator, without torch, transformers or scikit-learn.

`load` opens a folder that ``export`` wrote, and gives an object with the methods of the estimator
that predict. It needs numpy, tokenizers, and onnxruntime or openvino; pandas for those methods
that return a DataFrame.
"""

from __future__ import annotations

from skbert.runtime._loading import load

__all__ = ["load"]
