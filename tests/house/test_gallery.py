"""The scripts of the gallery and the tutorial: short, in order, with text, and they run.

The documentation's builder runs them too, and stops at the first error; here each is run alone,
from an empty folder, within a minute.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

SETTINGS = ast.parse((ROOT / "docs" / "conf.py").read_text(encoding="utf-8"))
GALLERY = ROOT / "examples" / "gallery"
TUTORIAL = ROOT / "examples" / "tutorial"
LINES_OF_CODE = 60
SECONDS = 60
# What the package needs, and what the extras "plot", "polars" and "docs" install.
ALLOWED = set(
    """cleanlab imblearn joblib mapie matplotlib numpy optuna pandas polars scipy shap skbert
    sklearn skrub torch transformers""".split()
)


def setting(name: str) -> object:
    """A name of docs/conf.py whose value is written out."""
    for node in SETTINGS.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise LookupError(name)


def scripts() -> list[Path]:
    return sorted([*GALLERY.glob("*/*.py"), *TUTORIAL.glob("*.py")])


def name_of(script: Path) -> str:
    return script.relative_to(ROOT / "examples").as_posix()


def lines_of_code(source: str) -> int:
    """Lines that hold neither text nor comments; the title's docstring is text."""
    after_title = source.split('"""', 2)[2]
    lines = [line.strip() for line in after_title.splitlines()]
    return sum(bool(line) and not line.startswith("#") for line in lines)


def imported(source: str) -> set[str]:
    """The modules that a script imports, by their full names."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def faults_of(source: str) -> list[str]:
    """What is missing in the text of a script, and what it must not import."""
    faults = []
    if not re.match(r'r?"""\n?(?P<title>.+)\n=+\n\n\S', source):
        faults.append("no title with text below it")
    if len(re.findall(r"^# %%\n# \S", source, re.MULTILINE)) < 2:
        faults.append("fewer than two blocks of text")
    roots = {name.split(".")[0] for name in imported(source)}
    faults += [f"imports {name}" for name in sorted(roots - ALLOWED - sys.stdlib_module_names)]
    private = [name for name in imported(source) if re.match(r"skbert\b.*\._", name)]
    return faults + [f"imports {name}" for name in sorted(private)]


def test_every_script_has_its_place_in_the_order() -> None:
    sections = setting("GALLERY")
    assert isinstance(sections, dict)
    listed = {f"gallery/{folder}/{name}.py" for folder in sections for name in sections[folder]}
    tutorial = setting("TUTORIAL")
    assert isinstance(tutorial, list)
    listed |= {f"tutorial/{name}.py" for name in tutorial}
    assert {name_of(script) for script in scripts()} == listed
    assert len({Path(name).name for name in listed}) == len(listed), "the order goes by file names"


@pytest.mark.parametrize("script", scripts(), ids=name_of)
def test_scripts_have_a_title_and_text_and_import_what_the_extras_install(script: Path) -> None:
    assert faults_of(script.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("script", sorted(GALLERY.glob("*/*.py")), ids=name_of)
def test_examples_are_short(script: Path) -> None:
    assert lines_of_code(script.read_text(encoding="utf-8")) <= LINES_OF_CODE


def test_faults_of_scripts_are_found() -> None:
    right = '"""\nTitle\n=====\n\nText.\n"""\n\n# %%\n# One.\n\nimport numpy\n\n# %%\n# Two.\n'
    assert faults_of(right) == []
    assert lines_of_code(right) == 1
    assert faults_of(right.replace("=====\n", "")) == ["no title with text below it"]
    assert faults_of(right.replace("# Two.\n", "")) == ["fewer than two blocks of text"]
    assert faults_of(right.replace("numpy", "requests")) == ["imports requests"]
    assert faults_of(right.replace("numpy", "skbert._core")) == ["imports skbert._core"]


@pytest.mark.slow
@pytest.mark.parametrize("script", scripts(), ids=name_of)
def test_scripts_run_within_a_minute(script: Path, minilm: Path, tmp_path: Path) -> None:
    roots = {name.split(".")[0] for name in imported(script.read_text(encoding="utf-8"))}
    missing = sorted(name for name in roots if importlib.util.find_spec(name) is None)
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; pip install -e '.[docs]'")
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
