"""What type checkers are told of the estimators is what they are when the code runs.

``make types`` has mypy and pyright read users' code in ``tests/typed``: a file for each job, and
one for what all have in common. Nothing there needs a cast or an ignored error, but for the
mistakes that a checker must find. Here this code runs.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
import tomllib
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, get_args, get_origin

import numpy as np
import pytest
from support import ROOT
from typed import user_code

import skbert
from skbert._estimator.fitted import learned_attributes

ESTIMATORS = [getattr(skbert, name) for name in skbert.__all__ if name.startswith("Bert")]
NOT_ALWAYS = {  # set where a frame, a hold-out, several labels or columns, or a PCA asks for it
    "feature_names_in_", "n_features_in_", "probe_score_", "thresholds_",
    "components_", "mean_", "explained_variance_ratio_", "conformity_scores_",
    "conformity_weights_", "held_out_confidences_", "target_names_",
}  # fmt: skip


def annotations_of(cls: type) -> set[str]:
    """Annotated names in the body of a class, which checkers take for parameters."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    return {
        node.target.id
        for node in body.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if not ast.unparse(node.annotation).startswith("ClassVar")
    }


def seen_by_checkers(cls: type) -> set[str]:
    """The fields that a checker sees in an estimator, with those of its bases."""
    bases = [base for base in cls.__mro__ if "__dataclass_fields__" in vars(base)]
    return set().union(*map(annotations_of, bases))


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_checkers_see_the_parameters_that_there_are(cls: type) -> None:
    assert seen_by_checkers(cls) == set(inspect.signature(cls).parameters)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_checkers_know_every_attribute_that_is_documented_or_saved(cls: type) -> None:
    documented = inspect.getdoc(cls).partition("\nAttributes\n")[2].partition("\nSee Also\n")[0]
    heads = [line.partition(" : ")[0] for line in documented.splitlines() if " : " in line]
    names = {name.strip() for head in heads for name in head.split(",") if not head[0].isspace()}
    properties = {name for name in names if isinstance(getattr(cls, name, None), property)}
    assert names
    assert names - properties == set(learned_attributes(cls))


def typed_jobs() -> list[ModuleType]:
    """Users' code of each job."""
    files = sorted((ROOT / "tests" / "typed").glob("*.py"))
    modules = [importlib.import_module(f"typed.{path.stem}") for path in files]
    return [module for module in modules if module is not user_code]


@pytest.fixture(scope="module")
def fitted(tiny_model: Path) -> dict[str, Any]:
    made = [job.learn(tiny_model) for job in typed_jobs()]
    return {type(each).__name__: each for each in made}


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_a_fit_sets_what_checkers_are_told(cls: type, fitted: dict[str, Any]) -> None:
    estimator = fitted[cls.__name__]
    for name in set(learned_attributes(cls)) - NOT_ALWAYS:
        (declared,) = get_args(inspect.getattr_static(cls, name).__orig_class__)
        if declared is Any:  # an array, or a list of arrays
            continue
        kind = declared if isinstance(declared, UnionType) else get_origin(declared) or declared
        kind = object if declared is Any else kind  # depends on the kind of y
        assert isinstance(getattr(estimator, name), kind), (name, declared)
    assert NOT_ALWAYS & fitted["BertTransformer"]._fitted.attributes.keys()


def test_the_user_code_runs(fitted: dict[str, Any], tiny_model: Path, tmp_path: Path) -> None:
    again = user_code.reopen(fitted["BertClassifier"], tmp_path / "saved")
    expected = fitted["BertClassifier"].predict_proba(user_code.TEXTS)
    np.testing.assert_array_equal(again.predict_proba(user_code.TEXTS), expected)
    searched, scores, vectors = user_code.search(tiny_model)
    assert searched.predict(user_code.TEXTS).shape == (8,)
    assert len(scores) == 2
    assert vectors.shape == (8, 32)


def test_the_user_code_makes_every_estimator() -> None:
    made = [{type(each) for each in job.construct()} for job in typed_jobs()]
    assert all(len(kinds) == 1 for kinds in made)
    assert set().union(*made) == set(ESTIMATORS)


def test_both_checkers_read_users_code_and_the_examples() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert {"skbert", "tests/typed", "examples/*.py"} <= set(settings["mypy"]["files"])
    assert "tests/typed" in settings["basedpyright"]["include"]
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ntypes:")[2]
    commands = recipe.partition("\n\n#")[0]  # of a target for each, so that they can run together
    assert commands.startswith(" mypy pyright pyright-examples\n")
    assert "/mypy\n" in commands
    assert "/basedpyright --pythonpath $(BIN)/python\n" in commands
    assert commands.endswith("/basedpyright --pythonpath $(BIN)/python --project examples")
    assert (ROOT / "examples" / "pyrightconfig.json").is_file()
