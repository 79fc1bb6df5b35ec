"""What is looked at: HTML in notebooks and pages, plain text in terminals.

No part of a text can become markup, run, load anything or turn the text around it. Depends on the
standard library.
"""

from __future__ import annotations

import html
import os
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from skbert.exceptions import SaveError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["View", "escaped", "legible"]

_STYLE = """
.skbert {
  --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --ground: #ffffff; --tint: #f6f8fa;
  color: var(--ink); background: var(--ground); font: 15px/1.6 system-ui, sans-serif;
  overflow-wrap: anywhere; padding: 0.5em;
}
@media (prefers-color-scheme: dark) {
  .skbert { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --ground: #0d1117; --tint: #151b23; }
}
html[data-theme="light"] .skbert {
  --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --ground: #ffffff; --tint: #f6f8fa;
}
html[data-theme="dark"] .skbert {
  --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --ground: #0d1117; --tint: #151b23;
}
.skbert table { border-collapse: collapse; display: block; overflow-x: auto; }
.skbert th, .skbert td {
  border: 1px solid var(--line); padding: 0.25em 0.6em; text-align: left; vertical-align: top;
}
.skbert .soft { color: var(--soft); }
"""
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body {{ margin: 0; }}
body > .skbert {{ box-sizing: border-box; min-height: 100vh; }}
</style></head>
<body>{body}</body></html>
"""
_SHOWN_AS_IS = "\n\t\u200c\u200d"  # the joiners are part of words and of emoji
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control, format, lone surrogate, separators of lines


def legible(text: object) -> str:
    """A text in which every character that would do something else than be seen is spelt out."""
    return "".join(_seen(each) for each in str(text))


def _seen(character: str) -> str:
    if character in _SHOWN_AS_IS or unicodedata.category(character) not in _UNSEEN:
        return character
    return f"\u27e8U+{ord(character):04X}\u27e9"


def escaped(text: object) -> str:
    """A text as HTML that shows it and does nothing else, in elements and in attributes."""
    return html.escape(legible(text))


class View:
    """Something to look at, as `show`, `worst_errors` and `report` return it.

    A notebook draws its HTML. A terminal prints its plain text, which ``str(view)`` gives, too.

    Parameters
    ----------
    title : str
        The title of the page.
    body : str
        The HTML that is shown. It is used as it is: texts in it have to be escaped.
    text : str
        The same in plain text.
    style : str, default=""
        CSS beside that of all views, with selectors that begin with ``.skbert``.

    Attributes
    ----------
    frame : DataFrame
        The rows that are shown as a table; views of `worst_errors` have one.

    Examples
    --------
    >>> from skbert import BertClassifier
    >>> from skbert.datasets import load_intents
    >>> from skbert.inspection import show
    >>> X, y = load_intents(return_X_y=True)
    >>> classifier = BertClassifier(epochs=1, freeze="all", random_state=0).fit(X, y)
    >>> view = show(classifier, X[:3], y[:3])
    >>> view.title
    'BertClassifier: 3 rows, 0 of them wrong'
    >>> view.save("page.html")
    """

    frame: pd.DataFrame

    def __init__(self, title: str, body: str, text: str, style: str = "") -> None:
        self.title = title
        self.body = body
        self.text = text
        self.style = style

    def __repr__(self) -> str:
        """The view in plain text."""
        return self.text

    def _repr_html_(self) -> str:
        return f'<div class="skbert"><style>{_STYLE}{self.style}</style>{self.body}</div>'

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page that loads nothing and runs nothing.

        Parameters
        ----------
        path : str or path-like
            The file, such as ``"page.html"``; one that is there is replaced.

        Raises
        ------
        SaveError
            If the file cannot be written.
        """
        page = _PAGE.format(title=escaped(self.title), body=self._repr_html_())
        try:
            Path(path).write_text(page, encoding="utf-8")
        except OSError as error:
            raise SaveError(f"{path} cannot be written: {error.strerror}.") from error
