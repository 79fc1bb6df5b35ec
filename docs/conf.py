"""How Sphinx builds this documentation: `make docs`."""

from __future__ import annotations

import os

import skbert

project = "skbert"
author = "the skbert developers"
copyright = "2026, the skbert developers"
release = skbert.__version__
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "myst_parser",
    "numpydoc",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

# Pages are Markdown; headings can be linked to.
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
# Links to files outside docs/ (data sheets, sources) are for readers of the repository.
suppress_warnings = ["myst.xref_missing"]

# One page for each public name, made from the table in api.md.
autosummary_generate = True
autodoc_typehints = "none"
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "pandas": ("https://pandas.pydata.org/docs", None),
    "sklearn": ("https://scikit-learn.org/stable", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
}

if os.environ.get("DOCS_OFFLINE") == "1":
    # Neither an index that cannot be fetched nor a link that then leads nowhere is an error.
    intersphinx_mapping = {}
    suppress_warnings += ["ref.ref", "ref.term"]

html_theme = "pydata_sphinx_theme"
html_title = f"skbert {release}"
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
