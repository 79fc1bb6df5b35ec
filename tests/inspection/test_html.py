"""Texts in views: seen, and nothing else."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from skbert.exceptions import SaveError
from skbert.inspection._html import View, escaped, legible

if TYPE_CHECKING:
    from pathlib import Path

UNSEEN = "\x00\x1b\x7f\x85\u00ad\u061c\u200b\u202e\u2028\u2066\ufeff\ud800\udfff"


class Content(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "<script>alert(1)</script>",
        "a & b &lt;",
        "\"'`",
        "</div><img src=x>",
        "é漢👩\u200d👧",
    ],
)
def test_a_text_reads_as_it_was(text: str) -> None:
    content = Content(f"<p title='{escaped(text)}'>{escaped(text)}</p>")
    assert (content.elements, content.text) == (["p"], text)


@pytest.mark.parametrize("character", UNSEEN, ids=lambda each: f"{ord(each):04X}")
def test_what_cannot_be_seen_is_spelt_out(character: str) -> None:
    assert legible(f"a{character}b") == f"a⟨U+{ord(character):04X}⟩b"


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    view = View("<Texts>", f"<p>{escaped('<b>' + UNSEEN)}</p>", "plain")
    assert repr(view) == "plain"
    view.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    content = Content(page)
    assert "script" not in content.elements
    assert "default-src 'none'" in page
    assert "&lt;Texts&gt;" in page


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="cannot be written: No such file"):
        View("t", "b", "t").save(tmp_path / "none" / "page.html")
