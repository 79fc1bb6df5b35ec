"""How Sphinx builds this documentation: `make docs`."""

from __future__ import annotations

import inspect
import re
from itertools import groupby

import requests
from docutils.nodes import Element, SkipNode
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.writers.html5 import HTML5Translator
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
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"

intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "pandas": ("https://pandas.pydata.org/docs", None),
    "sklearn": ("https://scikit-learn.org/stable", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
}


def is_online() -> bool:
    """Whether the indexes of other projects' pages can be fetched."""
    try:
        return requests.head("https://docs.python.org/3/objects.inv", timeout=10).ok
    except requests.RequestException:
        return False


if not is_online():
    # Neither an index that cannot be fetched nor a link that then leads nowhere is an error.
    intersphinx_mapping = {}
    suppress_warnings = ["ref.ref", "ref.term"]
    linkcheck_ignore = ["https?://"]

# The examples in the order of their pages: folders of examples/gallery, and scripts in each.
GALLERY = {
    "classify": [
        "first_classifier",
        "csv_columns",
        "feature_columns",
        "thresholds",
        "when_not_to_answer",
        "many_labels",
        "pairs",
        "regression",
        "learning_rate",
        "validation",
    ],
    "read": [
        "names",
        "questions",
        "choices",
    ],
    "vectors": [
        "column_transformer",
        "cached_search",
        "few_labels",
    ],
    "models": [
        "saving",
        "stop_and_resume",
        "long_texts",
        "encoders",
        "pretraining",
        "tensorflow_checkpoint",
        "several_processes",
    ],
    "inside": [
        "explaining",
        "report",
        "label_errors",
        "pictures_of_a_fit",
        "training_log",
        "pruned_heads",
    ],
    "libraries": [
        "with_cleanlab",
        "with_mapie",
        "with_shap",
        "with_skrub",
        "with_optuna",
        "with_imbalanced_learn",
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
    "capture_repr": ("_repr_html_",),  # frames and views; the rest is printed
    "image_scrapers": ("matplotlib",),
    "reset_modules": ("matplotlib",),
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
}


def write_formula(writer: HTML5Translator, node: Element) -> None:
    """Write a formula as MathML, which browsers draw without a script from elsewhere."""
    is_block = node.tagname == "math_block"
    formula = tex2mathml(node.astext(), as_block=is_block)
    writer.body.append(f"<p>{formula}</p>" if is_block else formula)
    raise SkipNode


html_math_renderer = "mathml"

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

# Parameters of estimators that concern the model, what is read, and what comes out. The others
# concern training.
GROUPS = {
    "Model": """model pooling layers layer_join head_init family vocab_size lowercase hidden_size
        num_hidden_layers num_attention_heads intermediate_size max_position_embeddings
        position_embedding_type device precision compile memory""",
    "Text": "max_length long_text stride text_columns missing label_pieces scheme on_ambiguous",
    "Output": """calibrate tune_thresholds decoding max_answer_length no_answer_threshold normalize
        n_components""",
}
GROUP_OF = {name: group for group, names in GROUPS.items() for name in names.split()}
ORDER = ["Model", "Training", "Text", "Output"]


def group_parameters(app, what, name, obj, options, lines):
    """Put the parameters of an estimator, as numpydoc wrote them, under their groups."""
    if what != "class" or ":Parameters:" not in lines or not hasattr(obj, "get_params"):
        return
    first = lines.index(":Parameters:") + 1
    last = next((i for i in range(first, len(lines)) if re.match(r"\S", lines[i])), len(lines))
    entries = re.split(r"\n(?= {4}\*\*)", "\n".join(lines[first:last]))[1:]

    def place(entry):
        parameter = re.match(r" {4}\*\*(\w+)", entry)[1]
        return ORDER.index(GROUP_OF.get(parameter, "Training"))

    grouped = []
    for number, group in groupby(sorted(entries, key=place), place):
        grouped += [f":{ORDER[number]}:", "", *"\n".join(group).splitlines(), ""]
    lines[first - 1 : last] = grouped


def own_signature(app, what, name, obj, options, signature, return_annotation):
    """Show the parameters of an estimator's constructor, and not those of what wraps it."""
    if what != "class" or not hasattr(obj, "get_params"):
        return None
    shown = inspect.signature(obj)
    parameters = [each.replace(annotation=each.empty) for each in shown.parameters.values()]
    return str(shown.replace(parameters=parameters, return_annotation=shown.empty)), None


def setup(app):
    """Let signatures be whole, parameters be grouped after numpydoc, and formulas be MathML."""
    app.connect("autodoc-process-signature", own_signature)
    app.connect("autodoc-process-docstring", group_parameters, priority=900)
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
