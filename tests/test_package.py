"""What `import skbert` costs and shows, seen from fresh interpreters."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import skbert

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "tokenizers", "transformers", "safetensors", "datasets", "matplotlib", "polars"}

# Light enough to be imported before anything is fitted.
LIGHT_MODULES = [
    "skbert",
    "skbert._check",
    "skbert._check_y",
    "skbert.datasets",
    "skbert.exceptions",
    "skbert.metrics",
]


def run(code: str) -> str:
    """Run code in a fresh interpreter at the root of the checkout; give what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules_added_by(statement: str, *, after: str = "pass") -> set[str]:
    """Names that a statement adds to ``sys.modules``."""
    code = f"""
import json, sys
{after}
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    return set(json.loads(run(code)))


def roots(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def exists(name: str) -> bool:
    home, _, last = name.rpartition(".")
    path = importlib.import_module(home).__path__ if home else None
    return path is None or any(found.name == last for found in pkgutil.iter_modules(path))


@pytest.mark.parametrize("name", [name for name in LIGHT_MODULES if exists(name)])
def test_light_modules_load_nothing_heavy(name: str) -> None:
    added = roots(modules_added_by(f"import {name}"))
    assert "skbert" in added
    assert added & HEAVY == set()


@pytest.mark.parametrize("name", ["skbert", "skbert.exceptions"])
def test_the_lightest_load_the_standard_library_alone(name: str) -> None:
    added = roots(modules_added_by(f"import {name}"))
    assert added - set(sys.stdlib_module_names) == {"skbert"}


def test_import_adds_only_itself_to_what_scikit_learn_loads() -> None:
    # No clock is needed to know that this is quick: it runs one short file.
    assert modules_added_by("import skbert", after="import sklearn") == {"skbert"}


def test_import_needs_little_of_the_standard_library() -> None:
    assert len(modules_added_by("import skbert")) <= 30


def test_import_is_silent() -> None:
    assert run("import skbert, skbert.exceptions") == ""


def test_names_are_sorted_and_shown() -> None:
    assert sorted(skbert.__all__) == skbert.__all__
    assert dir(skbert) == skbert.__all__
    assert len(set(skbert.__all__)) == len(skbert.__all__)


def test_names_load_when_first_used_and_stay() -> None:
    code = """
import json, sys, skbert
first = "torch" in sys.modules
found = skbert.exceptions
assert found is sys.modules["skbert.exceptions"]
assert "exceptions" in vars(skbert)
import skbert.exceptions as again
assert again is found
print(json.dumps([first, "torch" in sys.modules]))
"""
    assert json.loads(run(code)) == [False, False]


@pytest.mark.parametrize("name", skbert.__all__)
def test_every_public_name_is_there(name: str) -> None:
    found = getattr(skbert, name)
    assert getattr(skbert, name) is found
    if name[0].isupper():
        assert found.__name__ == name


def test_star_import_gives_the_public_names() -> None:
    code = """
before = set(globals()) | {"before"}
from skbert import *
import skbert
assert set(globals()) - before - {"skbert"} == set(skbert.__all__)
"""
    run(code)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match=r"^module 'skbert' has no attribute 'BertClasifier'"):
        _ = skbert.BertClasifier


def test_misspelt_name_gets_a_suggestion() -> None:
    code = "import skbert; skbert.BertClasifier"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Did you mean: 'BertClassifier'?" in done.stderr


def test_unknown_name_in_from_import() -> None:
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from skbert import nothing  # noqa: F401


def test_pickled_classes_are_found_by_their_own_module() -> None:
    for name in skbert.__all__:
        found = getattr(skbert, name)
        if isinstance(found, type):
            assert getattr(sys.modules[found.__module__], name) is found


def test_version_is_the_installed_one() -> None:
    try:
        installed = importlib.metadata.version("skbert")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("skbert is not installed here: pip install -e .")
    assert skbert.__version__ == installed


def test_version_is_written_once_and_in_the_changelog() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", skbert.__version__)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{skbert.__version__}]" in changelog
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in project
    assert skbert.__version__ not in re.findall(r'^version = "(.*)"', project, flags=re.MULTILINE)


def test_types_are_shipped() -> None:
    assert Path(skbert.__file__).with_name("py.typed").is_file()


def test_constraints_hold_what_the_project_asks_for() -> None:
    """Every pin of a direct dependency lies in the range that pyproject.toml gives."""
    tomllib = importlib.import_module("tomllib")
    requirements = importlib.import_module("packaging.requirements")
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    missing = []
    for group in ("", "offline", "polars", "plot", "bench", "dev"):
        for line in groups[group]:
            asked = requirements.Requirement(line)
            if asked.name != "skbert" and not asked.specifier.contains(pins.get(asked.name, "0")):
                missing.append(f"{line}: constraints.txt has {pins.get(asked.name)}")
    assert missing == []
    assert pins["torch"] == "2.13.0"
