"""The bundled data sets: their content, their datasheets and their loaders."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import Bunch
from support import ROOT

from skbert import datasets
from skbert._validation.answers import check_answers
from skbert._validation.entities import entities_of
from skbert.datasets import (
    load_choices,
    load_entities,
    load_intents,
    load_questions,
    load_ratings,
    load_squad,
)
from skbert.exceptions import InputError
from skbert.metrics import choice_accuracy, entity_f1, squad_f1

DATA = Path(datasets.__file__).parent / "data"
HALF_STEPS = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]
LOADERS = [
    pytest.param(load_choices, ["prompt", "choices", "answer"], id="choices"),
    pytest.param(load_entities, ["words", "tags"], id="entities"),
    pytest.param(load_intents, ["text", "label"], id="intents"),
    pytest.param(load_questions, ["question", "context", "answer"], id="questions"),
    pytest.param(load_ratings, ["text", "rating"], id="ratings"),
]
Loader = Callable[..., Any]
Row = tuple[int, int, float, int]


def normalised(text: str) -> str:
    """Drop what does not make two sentences different: case, blanks, marks."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def flat(cell: Any) -> str:
    """All the words in a cell, whatever it is."""
    if isinstance(cell, (list, tuple)):
        return " ".join(map(flat, cell))
    return str(cell)


def lengths(counts: list[int]) -> Row:
    """Return number, shortest, mean and longest."""
    return len(counts), min(counts), round(sum(counts) / len(counts), 1), max(counts)


def words_in(texts: Any) -> Row:
    """Return number, shortest, mean and longest of texts, in words."""
    return lengths([len(text.split()) for text in texts])


def measured_rows(load: Loader) -> dict[str, Row]:
    """Return what the table of a datasheet should state."""
    frame = load().frame
    if load is load_questions:
        answers = [gold[0] for gold in frame["answer"] if gold]
        return {
            "question": words_in(frame["question"]),
            "context": words_in(frame["context"].unique()),
            "answer": words_in(answers),
        }
    if load is load_entities:
        found = [each for tags in frame["tags"] for each in entities_of(tags, "IOB2")]
        types = sorted({label for _, _, label in found})
        by_type = {name: [j - i for i, j, label in found if label == name] for name in types}
        by_type["all"] = [j - i for i, j, _ in found]
        return {name: lengths(counts) for name, counts in by_type.items()}
    text, target = frame.columns[0], frame[frame.columns[-1]]
    if load is load_choices:
        target = frame["choices"].map(len)
    groups = {str(value): part[text] for value, part in frame.groupby(target)}
    return {name: words_in(texts) for name, texts in [*groups.items(), ("all", frame[text])]}


def stated_rows(descr: str) -> dict[str, Row]:
    """Read the same numbers from the table of a datasheet."""
    pattern = r"^\| (\S+) \| (\d+) \| (\d+) \| ([\d.]+) \| (\d+) \|$"
    found = re.findall(pattern, descr, flags=re.MULTILINE)
    return {name: (int(n), int(lo), float(mean), int(hi)) for name, n, lo, mean, hi in found}


def stated_score(descr: str, name: str) -> float:
    """Read the baseline score that a datasheet states."""
    match = re.search(rf"{name}\s+of\s+about\s+(\d\.\d+)", descr)
    assert match is not None
    return float(match.group(1))


def run_python(code: str) -> str:
    """Run code in a fresh interpreter that finds this package; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", code],
        cwd=Path(datasets.__file__).parents[1],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("load", "columns"), LOADERS)
class TestEveryLoader:
    def test_bunch_fields(self, load: Loader, columns: list[str]) -> None:
        bunch = load()
        assert isinstance(bunch, Bunch)
        assert isinstance(bunch.frame, pd.DataFrame)
        assert list(bunch.frame.columns) == columns
        inputs = bunch.frame[columns[:-1]]
        if len(columns) > 2:
            pd.testing.assert_frame_equal(bunch.data, inputs)
        else:
            pd.testing.assert_series_equal(bunch.data, inputs[columns[0]])
        pd.testing.assert_series_equal(bunch.target, bunch.frame[columns[-1]])
        assert list(bunch.frame.index) == list(range(len(bunch.frame)))

    def test_return_x_y(self, load: Loader, columns: list[str]) -> None:
        bunch = load(return_X_y=False)
        pair = load(return_X_y=True)
        assert type(pair) is tuple
        data, target = pair
        assert type(data) is type(bunch.data)
        assert data.equals(bunch.data)
        pd.testing.assert_series_equal(target, bunch.target)

    def test_return_x_y_is_keyword_only(self, load: Loader, columns: list[str]) -> None:
        with pytest.raises(TypeError):
            load(True)

    def test_every_call_returns_its_own_frame(self, load: Loader, columns: list[str]) -> None:
        first = load()
        first.frame.at[0, columns[0]] = "changed"
        if isinstance(first.frame.at[0, columns[-1]], list):
            first.frame.at[0, columns[-1]].append("changed")
        assert "changed" not in map(flat, load().frame.loc[0])

    def test_texts_are_clean(self, load: Loader, columns: list[str]) -> None:
        frame = load().frame
        assert not frame.isna().to_numpy().any()
        for name in columns[:-1]:
            for cell in frame[name]:
                for text in [cell] if isinstance(cell, str) else cell:
                    assert type(text) is str
                    assert text
                    assert " ".join(text.split()) == text

    def test_no_duplicates(self, load: Loader, columns: list[str]) -> None:
        keys = load().frame[columns[0]].map(flat).map(normalised)
        if load is load_questions:
            keys += " " + load().frame["context"]
        assert keys[keys.duplicated(keep=False)].tolist() == []
        assert (keys != "").all()

    def test_rows_are_shuffled(self, load: Loader, columns: list[str]) -> None:
        target = load().target.map(bool) if load is load_questions else load().target.map(flat)
        by_chance = (target.value_counts(normalize=True) ** 2).sum()
        assert (target == target.shift()).mean() < by_chance + 0.12

    def test_datasheet_is_the_file_and_complete(self, load: Loader, columns: list[str]) -> None:
        name = load.__name__.removeprefix("load_")
        descr = load().DESCR
        assert descr == (DATA / f"{name}.md").read_text(encoding="utf-8")
        assert descr.startswith(f"# Datasheet: {name}\n")
        headings = re.findall(r"^## (.+)$", descr, flags=re.MULTILINE)
        assert headings == [
            "Motivation",
            "Composition",
            "Collection",
            "Uses",
            "Licence",
            "Maintenance",
        ]
        assert "BSD-3-Clause" in descr
        assert all(f"`{name}`" in descr for name in columns)

    def test_datasheet_states_the_true_numbers(self, load: Loader, columns: list[str]) -> None:
        bunch = load()
        assert stated_rows(bunch.DESCR) == measured_rows(load)
        assert re.search(rf"There are\s+{len(bunch.frame)}\s+rows", bunch.DESCR)


class TestEntities:
    def test_every_word_has_a_tag(self) -> None:
        frame = load_entities().frame
        assert len(frame) == 204
        for cell in [*frame["words"], *frame["tags"]]:
            assert type(cell) is list
            assert all(type(entry) is str and " " not in entry for entry in cell)
        sizes = frame["words"].map(len)
        assert (sizes == frame["tags"].map(len)).all()
        assert (sizes.min(), sizes.max()) == (5, 16)

    def test_tags_are_legal_iob2(self) -> None:
        entities = load_entities()
        assert entities.target_names == ["DATE", "LOC", "PER"]
        for row, tags in enumerate(entities.target):
            for before, tag in zip(["O", *tags], tags, strict=False):
                assert re.fullmatch(r"O|[BI]-(DATE|LOC|PER)", tag), row
                if tag.startswith("I-"):
                    assert before[2:] == tag[2:], row

    def test_types_are_balanced_and_some_rows_are_empty(self) -> None:
        tags = load_entities().target
        counts = Counter(label for row in tags for _, _, label in entities_of(row, "IOB2"))
        assert max(counts.values()) <= 1.35 * min(counts.values())
        empty = sum(set(row) == {"O"} for row in tags)
        assert empty == 26
        assert f"{empty} rows\nhold no entity" in load_entities().DESCR

    def test_names_begin_with_a_capital_or_a_number(self) -> None:
        frame = load_entities().frame
        for words, tags in zip(frame["words"], frame["tags"], strict=True):
            for start, end, label in entities_of(tags, "IOB2"):
                assert label == "DATE" or re.match(r"[A-Z0-9]", words[start]), words
                assert words[end - 1] not in {",", ".", "?", "'s"}, words

    def test_people_and_places_share_words(self) -> None:
        frame = load_entities().frame
        seen: dict[str, set[str]] = {}
        for words, tags in zip(frame["words"], frame["tags"], strict=True):
            for word, tag in zip(words, tags, strict=True):
                seen.setdefault(word, set()).add(tag)
        for word in ("May", "Jordan", "Florence", "Bath", "Mark"):
            assert len(seen[word] | seen.get(word.lower(), set())) >= 2, word

    def test_baseline_is_as_stated(self) -> None:
        words, tags = load_entities(return_X_y=True)
        scores = []
        for train, test in KFold(5, shuffle=True, random_state=0).split(words):
            counts: dict[str, Counter[str]] = {}
            for row in train:
                for word, tag in zip(words[row], tags[row], strict=True):
                    counts.setdefault(word, Counter())[tag] += 1
            usual = {word: each.most_common(1)[0][0] for word, each in counts.items()}
            found = [[usual.get(word, "O") for word in words[row]] for row in test]
            scores.append(entity_f1(tags[test], found))
        stated = stated_score(load_entities().DESCR, "mean entity F1")
        assert np.mean(scores) == pytest.approx(stated, abs=0.01)


class TestQuestions:
    def test_size(self) -> None:
        X, y = load_questions(return_X_y=True)
        assert X.shape == (120, 2)
        assert y.name == "answer"
        assert set(Counter(X["context"]).values()) == {4}
        assert sum(gold == "" for gold in y) == 25

    def test_every_answer_stands_at_its_place_and_only_there(self) -> None:
        for row in load_questions().frame.itertuples():
            if row.answer == "":
                continue
            answer, start = row.answer
            assert (type(row.answer), type(answer), type(start)) == (tuple, str, int)
            assert answer == answer.strip() != ""
            assert row.context[start : start + len(answer)] == answer
            assert row.context.count(answer) == 1
            around = row.context[max(start - 1, 0)] + row.context[start + len(answer)]
            assert start == 0 or not around[0].isalnum()
            assert not around[1].isalnum()

    def test_the_span_extractor_takes_them(self) -> None:
        X, y = load_questions(return_X_y=True)
        gold = check_answers(y, X["context"].tolist())
        assert (gold.spans[:, 0] >= 0).sum() == 95
        again = check_answers(load_squad(DATA / "questions.json")[1], X["context"].tolist())
        np.testing.assert_array_equal(again.spans, gold.spans)
        assert again.texts == gold.texts

    def test_texts_look_like_questions_and_paragraphs(self) -> None:
        X = load_questions().data
        assert X["question"].str.fullmatch(r"[A-Z].+\?").all()
        assert X["context"].str.fullmatch(r"[A-Z].+\.").all()

    def test_rows_of_a_paragraph_stand_together(self) -> None:
        context = load_questions().data["context"]
        assert (context != context.shift()).sum() == 30
        silent = (load_questions().target == "").groupby(context).sum()
        assert silent.max() == 1

    def test_baselines_are_as_stated(self) -> None:
        X, y = load_questions(return_X_y=True)

        def nearest(question: str, context: str) -> str:
            asked = set(re.findall(r"\w+", question.lower()))
            sentences = re.split(r"(?<=[.;]) ", context)
            shared = [len(asked & set(re.findall(r"\w+", each.lower()))) for each in sentences]
            return sentences[shared.index(max(shared))]

        guesses = [nearest(*row) for row in zip(X["question"], X["context"], strict=True)]
        scores = [squad_f1(y, [""] * len(y)), squad_f1(y, guesses)]
        stated = re.findall(r"F1\s+of\s+about\s+(\d\.\d+)", load_questions().DESCR)
        assert scores == pytest.approx([float(score) for score in stated], abs=0.01)


class TestChoices:
    def test_size_and_range(self) -> None:
        X, y = load_choices(return_X_y=True)
        assert X.shape == (120, 2)
        assert (y.name, y.dtype) == ("answer", np.int64)
        counts = X["choices"].map(len)
        assert set(counts) == {2, 3, 4, 5}
        assert ((y >= 0) & (y < counts)).all()

    def test_options_of_a_row_differ(self) -> None:
        for choices in load_choices().data["choices"]:
            assert type(choices) is list
            assert len({normalised(each) for each in choices}) == len(choices)
            assert all("|" not in each for each in choices)

    def test_every_position_is_right_about_equally_often(self) -> None:
        X, y = load_choices(return_X_y=True)
        for size, part in y.groupby(X["choices"].map(len)):
            found = part.value_counts().reindex(range(size), fill_value=0)
            assert found.max() - found.min() <= 1

    def test_baselines_are_as_stated(self) -> None:
        X, y = load_choices(return_X_y=True)
        chance = (1 / X["choices"].map(len)).mean()
        sizes = [[len(each) for each in choices] for choices in X["choices"]]
        scores = [
            chance,
            choice_accuracy(y, [row.index(max(row)) for row in sizes]),
            choice_accuracy(y, [row.index(min(row)) for row in sizes]),
        ]
        stated = re.findall(r"about\s+(0\.\d+)", load_choices().DESCR)
        assert scores == pytest.approx([float(score) for score in stated], abs=0.01)


def squad_file(folder: Path, content: Any) -> Path:
    path = folder / "squad.json"
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return path


def squad_of(*questions: Any, context: str = "Lunch is at noon, at noon sharp.") -> dict[str, Any]:
    return {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": [*questions]}]}]}


NOON = {"text": "at noon", "answer_start": 9}


class TestSquad:
    def test_version_1(self, tmp_path: Path) -> None:
        later = {"text": "at noon", "answer_start": 18}
        first = {"id": "1", "question": "When?", "answers": [NOON, NOON, later, NOON]}
        second = {
            "id": "2",
            "question": "What?",
            "answers": [{"text": "Lunch", "answer_start": 0}],
        }
        X, y = load_squad(squad_file(tmp_path, squad_of(first, second)))
        assert list(X.columns) == ["question", "context"]
        assert X["question"].tolist() == ["When?", "What?"]
        assert X["context"].unique().tolist() == ["Lunch is at noon, at noon sharp."]
        assert y.name == "answers"
        assert y.tolist() == [[("at noon", 9), ("at noon", 18)], [("Lunch", 0)]]

    def test_version_2(self, tmp_path: Path) -> None:
        questions = [
            {"question": "a?", "answers": [], "is_impossible": True},
            {"question": "b?", "plausible_answers": [NOON], "is_impossible": True},
            {"question": "c?", "answers": []},
            {"question": "d?", "answers": [NOON], "is_impossible": False},
        ]
        _, y = load_squad(str(squad_file(tmp_path, squad_of(*questions))))
        assert y.tolist() == ["", "", "", [("at noon", 9)]]

    def test_several_articles_and_paragraphs(self, tmp_path: Path) -> None:
        one = squad_of({"question": "a?", "answers": []})["data"][0]
        two = squad_of({"question": "b?", "answers": []}, context="Other.")["data"][0]
        both = {"paragraphs": one["paragraphs"] + two["paragraphs"]}
        X, _ = load_squad(squad_file(tmp_path, {"data": [both, two]}))
        assert X["question"].tolist() == ["a?", "b?", "b?"]
        assert list(X.index) == [0, 1, 2]

    def test_a_byte_order_mark_is_no_matter(self, tmp_path: Path) -> None:
        path = tmp_path / "squad.json"
        path.write_text(json.dumps(squad_of({"question": "a?", "answers": []})), "utf-8-sig")
        assert len(load_squad(path)[0]) == 1

    def test_the_bundled_questions(self) -> None:
        X, y = load_squad(DATA / "questions.json")
        assert X.equals(load_questions().data)
        assert [gold[0] if gold else "" for gold in y] == load_questions().target.tolist()

    @pytest.mark.parametrize(
        ("content", "part"),
        [
            ("question,answer", "is not JSON in UTF-8"),
            ("[" * 100_000, "is not JSON in UTF-8"),
            ([], "the file is of type list, not an object"),
            ({"rows": []}, "the file has no key 'data'; its keys are ['rows']"),
            ({"data": {}}, "'data' of the file is of type dict, not list"),
            ({"data": []}, "holds no questions"),
            (
                {"data": [{"title": "t"}]},
                "data[0] has no key 'paragraphs'; its keys are ['title']",
            ),
            (
                {"data": [{"paragraphs": []}, {"paragraphs": [{"qas": []}]}]},
                "data[1].paragraphs[0] has no key 'context'",
            ),
            (squad_of(context=7), "'context' of data[0].paragraphs[0] is of type int, not str"),
            (squad_of({"answers": []}), "data[0].paragraphs[0].qas[0] has no key 'question'"),
            (squad_of("When?"), "data[0].paragraphs[0].qas[0] is of type str, not an object"),
            (
                squad_of({"question": "a?", "answers": []}, {"question": "b?"}),
                "data[0].paragraphs[0].qas[1] has no key 'answers'",
            ),
            (
                squad_of({"question": "a?", "answers": {"text": ["x"], "answer_start": [0]}}),
                "'answers' of data[0].paragraphs[0].qas[0] is of type dict, not list",
            ),
            (
                squad_of({"question": "a?", "answers": [{"text": "at noon"}]}),
                "data[0].paragraphs[0].qas[0].answers[0] has no key 'answer_start'",
            ),
            (
                squad_of({"question": "a?", "answers": [{"text": "x", "answer_start": "0"}]}),
                "'answer_start' of data[0].paragraphs[0].qas[0].answers[0] is of type str",
            ),
            (
                squad_of(context="Lunch \ud83c"),
                r"'context' of data[0].paragraphs[0] has half a character at position 6, '\ud83c'",
            ),
        ],
    )
    def test_other_files_are_told_what_they_lack(
        self, tmp_path: Path, content: Any, part: str
    ) -> None:
        path = squad_file(tmp_path, content)
        with pytest.raises(InputError) as caught:
            load_squad(path)
        assert str(caught.value).startswith(str(path))
        assert part in str(caught.value)

    def test_other_encodings(self, tmp_path: Path) -> None:
        path = tmp_path / "squad.json"
        path.write_text(json.dumps(squad_of()), "utf-16")
        with pytest.raises(InputError, match="is not JSON in UTF-8"):
            load_squad(path)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            load_squad(tmp_path / "squad.json")


class TestIntents:
    def test_size(self) -> None:
        intents = load_intents()
        assert len(intents.frame) == 449
        assert len(intents.frame) >= 300

    def test_classes(self) -> None:
        intents = load_intents()
        counts = intents.target.value_counts()
        assert len(counts) == 8
        assert counts.min() >= 30
        assert counts.max() <= 1.25 * counts.min()
        assert intents.target_names == sorted(counts.index)
        assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in counts.index)

    def test_lengths_vary(self) -> None:
        words = load_intents().data.str.split().str.len()
        assert words.min() == 3
        assert 25 <= words.max() <= 30
        assert words.std() > 4

    def test_datasheet_explains_every_class(self) -> None:
        intents = load_intents()
        found = re.findall(r"^- `(\w+)`: ", intents.DESCR, flags=re.MULTILINE)
        assert found == intents.target_names

    def test_word_counts_help_but_do_not_suffice(self) -> None:
        intents = load_intents()
        model = make_pipeline(TfidfVectorizer(), LogisticRegression())
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        score = cross_val_score(model, intents.data, intents.target, cv=folds).mean()
        assert score == pytest.approx(stated_score(intents.DESCR, "accuracy"), abs=0.03)
        assert 0.4 < score < 0.7


class TestRatings:
    def test_size(self) -> None:
        ratings = load_ratings()
        assert len(ratings.frame) == 252
        assert "target_names" not in ratings

    def test_ratings_lie_on_the_half_steps(self) -> None:
        target = load_ratings().target
        assert target.dtype == "float64"
        assert sorted(target.unique()) == HALF_STEPS
        assert target.value_counts().min() >= 20

    def test_baseline_is_as_stated(self) -> None:
        ratings = load_ratings()
        model = make_pipeline(TfidfVectorizer(), Ridge())
        folds = KFold(5, shuffle=True, random_state=0)
        scores = cross_val_score(model, ratings.data, ratings.target, cv=folds, scoring="r2")
        assert scores.mean() == pytest.approx(stated_score(ratings.DESCR, "R2"), abs=0.05)


def test_all_is_sorted_and_complete() -> None:
    loaders = [name for name in vars(datasets) if name.startswith("load_")]
    assert datasets.__all__ == sorted(loaders)


def test_every_data_file_has_a_loader_and_a_datasheet() -> None:
    tables = sorted(path.stem for path in DATA.iterdir() if path.suffix in {".csv", ".json"})
    assert tables == sorted(path.stem for path in DATA.glob("*.md"))
    assert len(list(DATA.iterdir())) == 2 * len(tables)
    assert [*(f"load_{name}" for name in tables), "load_squad"] == datasets.__all__


def test_documentation_page_quotes_the_datasheets() -> None:
    page = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    loaders = [getattr(datasets, name) for name in datasets.__all__]
    assert all(f"`{load.__name__}`" in page for load in loaders)
    sheets = " ".join(load().DESCR for load in loaders if load is not load_squad)
    quotes = re.findall(r'"(Each row .+?)"', page, flags=re.DOTALL)
    assert len(quotes) == 5
    for quote in quotes:
        assert " ".join(quote.split()) in " ".join(sheets.split())
    for link in re.findall(r"\]\((\.\./.+?)\)", page):
        assert (ROOT / "docs" / link).is_file()


@pytest.mark.long
def test_loading_does_not_import_torch() -> None:
    code = (
        "import sys; from skbert import datasets; "
        "[getattr(datasets, name)() for name in datasets.__all__ if name != 'load_squad']; "
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    assert run_python(code) == "[]\n"
