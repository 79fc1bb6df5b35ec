"""How Sphinx builds this documentation: `make docs`."""

from __future__ import annotations

import os

from sphinx_gallery.sorting import ExplicitOrder

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
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

# Pages are Markdown; headings can be linked to.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

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
    suppress_warnings = ["ref.ref", "ref.term"]
    linkcheck_ignore = ["https?://"]

# The examples in the order of their pages: folders of examples/gallery, and scripts in each.
GALLERY = {
    "classify": [
        "first_classifier",
    ],
}
# The chapters of the tutorial, in examples/tutorial.
TUTORIAL = [
    "tokens_and_embeddings",
    "attention",
    "pooler_and_heads",
    "masked_words",
    "optimizer",
    "relative_positions",
    "pruning",
]

sphinx_gallery_conf = {
    "examples_dirs": ["../examples/gallery", "../examples/tutorial"],
    "gallery_dirs": ["gallery", "tutorial"],
    "subsection_order": ExplicitOrder([f"../examples/gallery/{section}" for section in GALLERY]),
    "within_subsection_order": ExplicitOrder(
        [f"{name}.py" for names in [*GALLERY.values(), TUTORIAL] for name in names]
    ),
    "filename_pattern": "",  # every script is run
    "backreferences_dir": "generated/gallery",
    "doc_module": ("skbert",),
    "reference_url": {"skbert": None},
    "ignore_repr_types": r"matplotlib|numpy\.ndarray",
    "image_scrapers": ("matplotlib",),
    "reset_modules": ("matplotlib",),
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = f"skbert {release}"
html_static_path = ["_static"]
html_css_files = ["skbert.css"]
html_show_sourcelink = False
html_sidebars = {"index": []}
html_theme_options = {
    "logo": {"text": "skbert"},
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navigation_with_keys": False,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "show_nav_level": 2,
    "show_toc_level": 2,
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
