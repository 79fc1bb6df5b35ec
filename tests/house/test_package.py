"""What `import skbert` costs and shows, seen from fresh interpreters."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pkgutil
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

import skbert

HEAVY = {"torch", "tokenizers", "transformers", "safetensors", "datasets", "matplotlib", "polars"}

# Light enough to be imported before anything is fitted.
LIGHT_MODULES = [
    "skbert",
    "skbert._validation.texts",
    "skbert._validation.targets",
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
    return path is None or any(each.name == last for each in pkgutil.iter_modules(path))


@pytest.mark.long  # interpreters that import pandas
@pytest.mark.parametrize("name", [name for name in LIGHT_MODULES if exists(name)])
def test_light_modules_load_nothing_heavy(name: str) -> None:
    added = roots(modules_added_by(f"import {name}"))
    assert "skbert" in added
    assert added & HEAVY == set()


@pytest.mark.parametrize("name", ["skbert", "skbert.exceptions"])
def test_the_lightest_load_the_standard_library_alone(name: str) -> None:
    added = roots(modules_added_by(f"import {name}"))
    assert added - set(sys.stdlib_module_names) == {"skbert"}


@pytest.mark.long
def test_import_adds_only_itself_to_what_scikit_learn_loads() -> None:
    # No clock is needed to know that this is quick: it runs one short file.
    assert modules_added_by("import skbert", after="import sklearn") == {
        "skbert",
        "skbert._catalogue",
    }


def test_import_needs_little_of_the_standard_library() -> None:
    assert len(modules_added_by("import skbert")) <= 30


def test_import_is_silent() -> None:
    assert run("import skbert, skbert.exceptions") == ""


def test_names_are_sorted_and_shown() -> None:
    assert dir(skbert) == sorted(skbert.__all__)
    assert len(set(skbert.__all__)) == len(skbert.__all__)


def test_names_load_when_first_used_and_stay() -> None:
    code = """
import json, sys, skbert
first = "torch" in sys.modules
module = skbert.exceptions
assert module is sys.modules["skbert.exceptions"]
assert "exceptions" in vars(skbert)
import skbert.exceptions as again
assert again is module
print(json.dumps([first, "torch" in sys.modules]))
"""
    assert json.loads(run(code)) == [False, False]


@pytest.mark.parametrize("name", skbert.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(skbert, name)
    assert getattr(skbert, name) is value
    if name[0].isupper():
        assert value.__name__ == name


@pytest.mark.long
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
        value = getattr(skbert, name)
        if isinstance(value, type):
            assert getattr(sys.modules[value.__module__], name) is value


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
    assert "version" in tomllib.loads(project)["project"]["dynamic"]
    assert skbert.__version__ not in re.findall(r'^version = "(.*)"', project, flags=re.MULTILINE)


def test_types_are_shipped() -> None:
    assert Path(skbert.__file__).with_name("py.typed").is_file()


def test_constraints_hold_what_the_project_asks_for() -> None:
    """Every pin of a direct dependency lies in the range that pyproject.toml gives."""
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


# --- what is published ---------------------------------------------------------------------------

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[[^\]]*\]\(([^)]+)\)")


def links_to_files(text: str) -> list[str]:
    return [link for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    """What setuptools makes of pyproject.toml and setup.py, without building anything."""
    pytest.importorskip("setuptools")
    code = """
import json, sys, warnings
from distutils.core import run_setup
warnings.simplefilter("ignore")
metadata = run_setup("setup.py", stop_after="config").metadata
names = "long_description", "long_description_content_type", "url", "project_urls"
print(json.dumps({name: getattr(metadata, name) for name in names}))
"""
    return dict(json.loads(run("import setuptools" + code)))


def test_links_of_readme_lead_to_files() -> None:
    links = links_to_files(README)
    assert len(links) >= 8
    assert [link for link in links if not (ROOT / link.partition("#")[0]).is_file()] == []


def test_the_page_of_the_package_links_to_no_files(metadata: dict[str, Any]) -> None:
    """An index shows README without the folder beside it."""
    page = metadata["long_description"]
    assert links_to_files(page) == []
    assert metadata["long_description_content_type"] == "text/markdown"
    assert "([docs/tagging.md](docs/tagging.md))" in README
    assert "(docs/tagging.md)" in page
    assert LINK.sub("", page) == page
    assert page.count("\n") == README.count("\n")


def test_the_package_claims_no_home_that_it_does_not_have(metadata: dict[str, Any]) -> None:
    assert not metadata["url"]
    assert not metadata["project_urls"]


def test_install_lines_name_a_checkout_and_the_torch_for_a_cpu() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (README, index):
        blocks = re.findall(r"^```sh\n(.+?)^```$", page, re.MULTILINE | re.DOTALL)
        shell = next(block for block in blocks if "pip install" in block)  # from a checkout
        torch, package = shell.splitlines()
        assert torch.startswith(
            "pip install torch --index-url https://download.pytorch.org/whl/cpu"
        )
        assert package == 'pip install ".[offline]"'
    assert "pip install skbert" not in README + index
    assert 'pip install "skbert' not in README + index


@pytest.mark.parametrize(
    ("target", "extra"),
    [("demo", "offline"), ("test", "dev"), ("quick", "dev"), ("lint", "dev"), ("types", "dev")],
)
def test_a_fresh_clone_installs_what_the_target_needs(
    target: str, extra: str, tmp_path: Path
) -> None:
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "skbert" / "_core" / "cpu" / "csrc").mkdir(parents=True)
    shown = subprocess.run(
        ["make", "--dry-run", target], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    [install] = [line for line in shown.stdout.splitlines() if "pip install" in line]
    assert f'-e ".[{extra}]"' in install
    assert "-c constraints.txt" in install


def test_what_the_tests_need_serves_the_demo(tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "\n\ttouch .venv/demo.stamp $@\n" in makefile
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "skbert[offline," in optional["optional-dependencies"]["dev"][0]


def test_counts_of_readme() -> None:
    """How many checks and odd inputs there are, as README says."""
    flat = " ".join(README.split())
    words = "for the classifier", "for the regressor", "for the transformer"
    said = [re.findall(rf"(\d+) (?:run )?{word}", flat) for word in words]
    tests = (ROOT / "tests" / "estimator" / "test_sklearn_checks.py").read_text(encoding="utf-8")
    names = "NumericClassifier", "NumericRegressor", "NumericTransformer"
    assert said == [re.findall(rf"^    {name}: (\d+),$", tests, re.MULTILINE) for name in names]
    tests = (ROOT / "tests" / "validation" / "test_bad_inputs.py").read_text(encoding="utf-8")
    [inputs] = re.findall(r"A table of more than (\d+) bad and unusual inputs", flat)
    assert f"FEWEST_ROWS = {inputs}\n" in tests


@pytest.mark.slow  # compiles the kernels
def test_a_wheel_is_tagged_as_what_it_is(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", "*.so", "build", "dist", "tests", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=ignored)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", tmp_path, source], check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    assert wheel.name == f"skbert-{skbert.__version__}-{python}-{python}-{platform}.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "skbert/py.typed" in names
    assert "skbert/data/intents.csv" in names
    assert (
        len([name for name in names if re.fullmatch(r"skbert/_core/cpu/kernels\..+\.so", name)])
        == 1
    )
    assert {name.split("/")[0] for name in names} == {
        "skbert", f"skbert-{skbert.__version__}.dist-info"
    }  # fmt: skip
