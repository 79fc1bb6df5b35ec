"""Sixty hostile texts in every view: nothing becomes markup, runs or is fetched.

The parser test reads the HTML of every kind of view. The browser test opens the saved pages in a
headless Chromium, where there is one, and counts the requests to a server on this machine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from support.hostile import hostile_texts
from support.inert import Fixed, Lengths

from skbert import BertChoiceRanker, BertClassifier, BertSpanExtractor, BertTokenTagger
from skbert.inspection import EmbeddingMapDisplay, show, worst_errors
from skbert.inspection._html import View, escaped, legible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::skbert.exceptions.SkbertWarning")

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
QUICK = {"epochs": 1, "device": "cpu", "random_state": 0}
ELEMENTS = frozenset(
    "article b div header i mark p small span style u table thead tbody tr th td".split()
)
PAGE = frozenset("html head meta title body".split())
MAP = frozenset("svg g path title".split())
UNSEEN = set("\0\x1b\x07\u202e\u2066\u2028\ud800")
CLASSES = re.compile(
    r"(skbert|row|wrong|verdict|soft|text|legend|bars|track|other|scale|number|flags|open|heat"
    r"|c\d|map|key| )*"
)
VALUES = {
    "class": CLASSES,
    "style": re.compile(r"(width|left):[\d.]+%|background:rgba\([\d,.]+\)"),
    "title": re.compile(r"[+-][\d.e+-]+"),
    "viewbox": re.compile(r"[\d -]+"),
    "transform": re.compile(r"translate\([\d. ]+\)"),
    "d": re.compile(r"[MLHVahvz\d. -]+"),
    "fill": re.compile(r"#[\dA-Fa-f]{6}"),
    "role": re.compile("img"),
}  # of the attributes that views have


def without_surrogates(texts: list[str]) -> list[str]:
    """The texts as labels of entities, which pandas' tables of strings can hold."""
    return [text.encode("utf-8", "replace").decode() for text in texts]


def of_classes(model: Path, texts: list[str]) -> tuple[Any, Any, Any]:
    return Fixed(texts, np.full(60, 1 / 60)), texts, [texts[row % 4] for row in range(60)]


def of_fitted_classes(model: Path, texts: list[str]) -> tuple[Any, Any, Any]:
    labels = [texts[row % 4] for row in range(60)]
    frame = pd.DataFrame({texts[0]: texts, texts[6]: texts[::-1]}, dtype=object)
    return BertClassifier(model, **QUICK).fit(frame, labels), frame, labels


def of_labels(model: Path, texts: list[str]) -> tuple[Any, Any, Any]:
    y = [[row % 2, row % 3 % 2] for row in range(60)]
    return BertClassifier(model, **QUICK).fit(texts, y), texts, y


def of_numbers(model: Path, texts: list[str]) -> tuple[Any, Any, Any]:
    return Lengths(), texts, [float(row) for row in range(60)]


def of_tags(model: Path, texts: list[str]) -> tuple[Any, Any, Any]:
    X = [["a", text, "b"] for text in texts]
    y = [["O", f"B-{text}", "O"] for text in without_surrogates(texts)]
    tagger = BertTokenTagger(model, **QUICK, scheme="IOB2").fit(X, y)
    return tagger, X, y


def of_spans(model: Path, texts: list[str]) -> tuple[Any, Any, Any]:
    labels = without_surrogates(texts)[::-1]
    y = [[(0, len(text), label)] for text, label in zip(texts, labels, strict=True)]
    return BertTokenTagger(model, **QUICK).fit(texts, y), texts, y


def of_answers(model: Path, texts: list[str]) -> tuple[Any, Any, Any]:
    X = [(f"{text}?", f"the {text[:200]} room {text[200:]}") for text in texts]
    y = ["room"] * 60
    extractor = BertSpanExtractor(model, **QUICK, on_ambiguous="first").fit(X, y)
    return extractor, X, [text[:40] for text in texts]


def of_options(model: Path, texts: list[str]) -> tuple[Any, Any, Any]:
    X = [(text, [text, "a", text + "b"]) for text in texts]
    return BertChoiceRanker(model, **QUICK).fit(X, [0] * 60), X, [0] * 60


KINDS: dict[str, Callable[[Path, list[str]], tuple[Any, Any, Any]]] = {
    "classes": of_classes,
    "pairs and their columns": of_fitted_classes,
    "labels": of_labels,
    "numbers": of_numbers,
    "tags": of_tags,
    "spans": of_spans,
    "answers": of_answers,
    "options": of_options,
}


@pytest.fixture(scope="module")
def vivid(make_tiny_model: Callable[..., Path]) -> Path:
    """A model whose outputs differ much from text to text, which takes few steps to explain."""
    return make_tiny_model(initializer_range=0.3)


class Reading(HTMLParser):
    """A page as a browser reads it: its elements with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.others = "", []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.others.append(data)

    handle_pi = unknown_decl = handle_comment


def offences(page: Reading, more: frozenset[str] = frozenset()) -> list[str]:
    """Elements and attributes that no view has."""
    return [
        f"<{tag} {attributes}>"
        for tag, attributes in page.elements
        if tag not in ELEMENTS | more
        or (tag not in PAGE - {"title"} and not attributes.keys() <= VALUES.keys())
        or not all(
            VALUES[name].fullmatch(value or "")
            for name, value in attributes.items()
            if name in VALUES
        )
    ] + page.others


class Sample(NamedTuple):
    """Views of hostile texts, by name."""

    views: dict[str, View]
    texts: list[str]


def views_of(model: Path, kind: str, texts: list[str]) -> dict[str, View]:
    estimator, X, y = KINDS[kind](model, texts)
    views = {f"{kind}, alone": show(estimator, X, max_rows=60)}
    if kind != "answers":  # answers that are not in their contexts are refused
        views[f"{kind}, true"] = show(estimator, X, y, max_rows=60)
        views[f"{kind}, worst"] = worst_errors(estimator, X, y, 60)
    if kind in ("labels", "pairs and their columns"):
        views[f"{kind}, explained"] = worst_errors(estimator, X, y, 60, explain=True)
    return views


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_becomes_markup(vivid: Path, kind: str) -> None:
    texts = hostile_texts()
    for name, view in views_of(vivid, kind, texts).items():
        page = Reading(view._repr_html_())
        assert offences(page) == [], name
        rows = [tag for tag, _ in page.elements].count("article")
        assert rows == 60, name
        shown = "".join(page.text.split())
        for text in texts[:50]:  # the others hold what is spelt out
            assert "".join(text.split()) in shown, (name, text)
        assert not set(view._repr_html_() + repr(view)) & UNSEEN, name


def maps_of(texts: list[str]) -> dict[str, View]:
    """Maps of the texts: without labels, with these as labels, and with numbers."""
    places = np.random.default_rng(0).normal(size=(60, 2))
    labels = {"bare": None, "labels": texts[::-1], "numbers": [row / 7 for row in range(60)]}
    return {
        name: EmbeddingMapDisplay(places, texts, each, axis_names=(texts[0], texts[6])).to_view()
        for name, each in labels.items()
    }


def test_no_text_of_a_map_becomes_markup() -> None:
    texts = hostile_texts()
    for name, view in maps_of(texts).items():
        page = Reading(view._repr_html_())
        assert offences(page, MAP) == [], name
        assert [tag for tag, _ in page.elements].count("g") == 60, name
        shown = "".join(page.text.split())
        for text in texts[:50]:
            assert "".join(text[:300].split()) in shown, (name, text)
        assert not set(view._repr_html_() + repr(view)) & UNSEEN, name


def test_titles_are_inert(tmp_path: Path) -> None:
    for number, text in enumerate(hostile_texts()):
        path = tmp_path / f"{number}.html"
        View(text, escaped(text), text).save(path)
        page = Reading(path.read_text(encoding="utf-8"))
        assert offences(page, PAGE) == []
        assert page.text.count(legible(text)) == 2


def test_offences_are_found() -> None:
    for text in hostile_texts()[:50]:
        bare = Reading(f'<div class="skbert"><p class="{text}">{text}</p></div>')
        harmless = all("<" + sign not in text for sign in "sSliobemvadft/!?n")
        assert offences(bare) or harmless, text


# --- in a browser --------------------------------------------------------------------------------


class Canary(BaseHTTPRequestHandler):
    """Counts the requests that leave a page."""

    hits: list[str]

    def do_GET(self) -> None:
        self.hits.append(self.path)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def canary() -> Iterator[tuple[str, list[str]]]:
    """The address of a server on this machine, and the requests that it got."""
    handler = type("Handler", (Canary,), {"hits": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/x", handler.hits
        server.shutdown()


def opened(page: Path, folder: Path) -> Reading:
    """The page after a headless Chromium has run it for two seconds of its time."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        f"--user-data-dir={folder}", "--virtual-time-budget=2000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return Reading(run.stdout.decode("utf-8", "replace"))


def has_run(page: Reading) -> bool:
    """Whether a script of the texts ran: it marks the body and changes the title."""
    body = next(attributes for tag, attributes in page.elements if tag == "body")
    return bool(body) or page.text.lstrip().startswith("ran")


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium: apt-get install chromium")
def test_nothing_runs_or_leaves_in_a_browser(
    vivid: Path, tmp_path: Path, canary: tuple[str, list[str]]
) -> None:
    url, hits = canary
    texts, views = hostile_texts(url), {}
    for kind in KINDS:
        views.update(views_of(vivid, kind, texts))
    views.update(maps_of(texts))
    body = "".join(view._repr_html_() for view in views.values())
    View("The title", body, "").save(tmp_path / "page.html")
    View(" ".join(texts), "The title", "").save(tmp_path / "title.html")
    for name in ("page", "title"):
        page = opened(tmp_path / f"{name}.html", tmp_path / "browser")
        assert "The title" in page.text
        assert offences(page, PAGE | MAP) == []
        assert not has_run(page)
    assert hits == []


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium: apt-get install chromium")
@pytest.mark.parametrize("row", [0, 5, 6, 28])
def test_the_same_texts_run_where_they_are_not_escaped(
    tmp_path: Path, canary: tuple[str, list[str]], row: int
) -> None:
    url, hits = canary
    page = f"<html><head><title>The title</title></head><body>{hostile_texts(url)[row]}</body>"
    (tmp_path / "bare.html").write_text(page, encoding="utf-8")
    seen = opened(tmp_path / "bare.html", tmp_path / "browser")
    assert offences(seen, PAGE)
    assert hits or has_run(seen)
