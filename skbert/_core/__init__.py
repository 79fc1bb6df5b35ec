"""The engine, built on torch: texts to tensors, the training loop, inference.

It may import torch, numpy, the tokenizer and model libraries, ``skbert.exceptions``,
``skbert._arrays`` and its own modules. It never imports an estimator, scikit-learn or pandas.
"""
