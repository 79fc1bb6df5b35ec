"""README, the pages and the docstrings: their code runs, and prints what stands below it.

Every block of Python of a page is run, one page in one namespace, in an empty folder, without a
network. What a block prints has to be the plain block right below it, to the letter. There is no
way to leave a block out: an example that needs a file gets it from ``FILES``. Shell lines are not
run; the targets, scripts, options and modules that they name have to be there.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import importlib.util
import io
import pkgutil
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from support import ROOT

import skbert
from skbert._catalogue import ESTIMATORS
from skbert._core.families import FAMILIES
from skbert._core.runtime import device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])
}
# Blocks of Python that each page has at least; a page that gains its first is added.
FEWEST_BLOCKS = {
    "README.md": 1,
    "docs/checkpoints.md": 1,
    "docs/classification.md": 4,
    "docs/choices.md": 2,
    "docs/coming_from.md": 9,
    "docs/datasets.md": 5,
    "docs/faq.md": 1,
    "docs/displays.md": 6,
    "docs/engines.md": 8,
    "docs/export.md": 1,
    "docs/features.md": 3,
    "docs/index.md": 4,
    "docs/inspection.md": 5,
    "docs/large_data.md": 2,
    "docs/libraries.md": 1,
    "docs/looking.md": 3,
    "docs/pretraining.md": 5,
    "docs/questions.md": 2,
    "docs/report.md": 3,
    "docs/resuming.md": 1,
    "docs/sharing.md": 3,
    "docs/scaling.md": 1,
    "docs/tagging.md": 5,
    "docs/validation.md": 1,
    "docs/when_not.md": 2,
}
# Whose code starts other processes: tests/distributed/test_engines.py runs it in one of its own.
ENGINES = {"docs/engines.md"}
# Modules whose docstrings have examples, and how many lines of them at least.
FEWEST_EXAMPLES = {
    **dict.fromkeys(ESTIMATORS.values(), 4),
    "skbert._choice.estimator": 5,
    "skbert._classification.estimator": 5,
    "skbert._classification.predicting": 6,
    "skbert._estimator.portable": 5,
    "skbert._pretraining.estimator": 5,
    "skbert._regression.estimator": 13,
    "skbert._tagging.estimator": 11,
    "skbert._embedding.estimator": 8,
    "skbert._conversion.tensorflow": 3,
    "skbert._estimator.fitting": 6,
    "skbert._estimator.loading": 5,
    "skbert.distributed": 7,
    "skbert.datasets": 30,
    "skbert.inspection._attributions": 8,
    "skbert.inspection._displays.confusion": 9,
    "skbert.inspection._displays.counts": 5,
    "skbert.inspection._displays.fits": 6,
    "skbert.inspection._displays.heads": 11,
    "skbert.inspection._displays.maps": 8,
    "skbert.inspection._displays.reliability": 5,
    "skbert.inspection._displays.thresholds": 6,
    "skbert.inspection._heads": 15,
    "skbert.inspection._html": 8,
    "skbert.inspection._label_issues": 7,
    "skbert.inspection._report": 7,
    "skbert.inspection._views": 6,
    "skbert.inspection._learning_rate": 11,
    "skbert.inspection._worst_errors": 7,
    "skbert.metrics": 20,
    "skbert.metrics._calibration": 4,
    "skbert.runtime._loading": 7,
    "skbert.testing": 8,
}
# What functions return, whose examples show it.
RESULTS = ("Attention", "Attribution", "Attributions")
RELEASE = "uncased_L-12_H-768_A-12"


def write_release(folder: Path) -> None:
    """Put a checkpoint of TensorFlow where the examples expect Google's release."""
    data = ROOT / "tests" / "data" / "tf"
    shutil.copytree(data / "encoder", folder / RELEASE)
    for name in ("bert_config.json", "vocab.txt"):
        shutil.copy(data / name, folder / RELEASE)


def import_mlflow(folder: Path) -> None:
    """Import what warns of its own types when it is imported first."""
    del folder
    with warnings.catch_warnings(action="ignore"):
        importlib.import_module("mlflow.pyfunc")


FILES: dict[str, Callable[[Path], None]] = {
    "docs/checkpoints.md": write_release,
    "docs/sharing.md": import_mlflow,
    "skbert._conversion.tensorflow": write_release,
}


# --- reading pages -------------------------------------------------------------------------------


class Block(NamedTuple):
    """A fenced block: the line of its fence, its language, its text, and what follows it."""

    line: int
    language: str
    text: str
    output: str | None = None


FENCE = re.compile(r"^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page; one of output, right below Python, becomes part of that."""
    blocks: list[Block] = []
    end = 0
    for fence in FENCE.finditer(page):
        line = page.count("\n", 0, fence.start()) + 1
        language, text = fence["language"].strip(), fence["text"]
        follows = bool(blocks) and not page[end : fence.start()].strip()
        if not language and follows and blocks[-1].language == "python":
            blocks[-1] = blocks[-1]._replace(output=text)
        else:
            blocks.append(Block(line, language, text))
        end = fence.end()
    fences = 2 * sum(1 + (block.output is not None) for block in blocks)
    assert len(re.findall(r"^\s*(?:```|~~~)", page, re.MULTILINE)) == fences, "a fence is not read"
    return blocks


def python_of(page: str) -> list[Block]:
    return [block for block in blocks_of(page) if block.language == "python"]


# --- running them --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute all pages in float32, so that they print the same on every processor."""
    monkeypatch.setattr(device, "_has_fast_bfloat16", lambda where: False)


@contextlib.contextmanager
def working_folder(write_files: Callable[[Path], None] | None) -> Iterator[None]:
    """A folder that is empty but for the files that some examples need."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if write_files is not None:
            write_files(Path(folder))
        yield


def outputs_of(
    codes: tuple[str, ...], write_files: Callable[[Path], None] | None = None
) -> list[str]:
    """What each of some blocks prints, run one after another in one namespace."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    with working_folder(write_files):
        for code in codes:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, f"<block {len(outputs) + 1} of the page>", "exec"), namespace)
            outputs.append(printed.getvalue())
    return outputs


def differences(name: str, page: str) -> list[str]:
    """Where the blocks of a page print something else than what stands below them."""
    blocks = python_of(page)
    outputs = outputs_of(tuple(block.text for block in blocks), FILES.get(name))
    return [
        f"{name}:{block.line} prints\n{printed}and the page says\n{block.output or 'nothing'}"
        for block, printed in zip(blocks, outputs, strict=True)
        if printed != (block.output or "")
    ]


@pytest.mark.parametrize("name", [name for name in FEWEST_BLOCKS if name not in ENGINES])
def test_code_of_pages_runs_and_prints_what_they_say(name: str, minilm: Path) -> None:
    assert differences(name, PAGES[name]) == []


@pytest.mark.parametrize("name", PAGES)
def test_no_page_has_lost_its_code(name: str) -> None:
    assert (len(python_of(PAGES[name])) > 0) == (name in FEWEST_BLOCKS)
    assert len(python_of(PAGES[name])) >= FEWEST_BLOCKS.get(name, 0)


def test_faults_of_pages_are_found() -> None:
    right = "```python\nx = 1\nprint(x)\n```\n\n```\n1\n```\n\n```python\nx += 1\n```\n"
    assert differences("right", right) == []
    [wrong] = differences("wrong", right.replace("\n1\n", "\n2\n"))
    assert wrong == "wrong:1 prints\n1\nand the page says\n2\n"
    [silent] = differences("silent", right.replace("```\n1\n```\n", ""))
    assert "the page says\nnothing" in silent
    [more] = differences("more", right.replace("print(x)", "pass"))
    assert more == "more:1 prints\nand the page says\n1\n"
    with pytest.raises(NameError, match="'y'"):
        differences("undefined", right.replace("x += 1", "y += 1"))


# --- what is not Python --------------------------------------------------------------------------

LANGUAGES = {"python", "sh", "{eval-rst}", "{toctree}"}
OTHER_LIBRARIES = {"docs/coming_from.md": {"py"}}  # their code is coloured, and not run
INCLUDED = re.compile(r"\{include\} \.\./skbert/data/\w+\.md")
TARGETS = set(
    re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)


def commands_of(page: str) -> list[str]:
    """Lines of shell blocks, and what stands between backticks in the text."""
    shell = [block.text for block in blocks_of(page) if block.language == "sh"]
    lines = [line for text in shell for line in text.replace("\\\n", " ").splitlines()]
    quoted = re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", FENCE.sub("", page))
    return [*lines, *(" ".join(each.split()) for each in quoted)]


def faults_of(command: str) -> list[str]:
    """Targets, files, options and modules that a command names and that are not there."""
    command = command.partition("#")[0]
    faults = []
    if target := re.search(r"(?:^| )make ([a-z ]+)", command):
        faults += [f"make {name}" for name in target[1].split() if name not in TARGETS]
    ours = r"(?<![\w/.-])((?:\.ci|docs|examples|skbert|tests)/[\w./-]*\w)(?![\w./<-])"
    written = {path for option in ("--plot", "--out") for path in _after(option, command)}
    paths = set(re.findall(ours, command)) - written
    faults += [path for path in sorted(paths) if not (ROOT / path).exists()]
    for script in sorted(path for path in paths if path.endswith(".py")):
        if (ROOT / script).exists():
            source = (ROOT / script).read_text(encoding="utf-8")
            options = re.findall(r"(?<!\S)(--[a-z][a-z-]*)", command.partition(script)[2])
            faults += [f"{script} {each}" for each in options if f'"{each}"' not in source]
    if module := re.search(r"python -m skbert ([a-z-]+)", command):
        source = (ROOT / "skbert" / "__main__.py").read_text(encoding="utf-8")
        faults += [f"skbert {module[1]}"] if f'"{module[1]}"' not in source else []
    return faults


def _after(option: str, command: str) -> list[str]:
    return re.findall(rf"{option} (\S+)", command)


@pytest.mark.parametrize("name", PAGES)
def test_blocks_have_a_language_and_output_stands_below_its_code(name: str) -> None:
    languages = {block.language for block in blocks_of(PAGES[name])}
    allowed = LANGUAGES | OTHER_LIBRARIES.get(name, set())
    assert {each for each in languages if not INCLUDED.fullmatch(each)} <= allowed


@pytest.mark.parametrize("name", sorted(PAGES.keys() - {"CHANGELOG.md"}))
def test_commands_name_what_there_is(name: str) -> None:
    assert [fault for command in commands_of(PAGES[name]) for fault in faults_of(command)] == []


def test_faults_of_commands_are_found() -> None:
    assert {"demo", "test", "lint", "types", "docs"} <= TARGETS
    assert faults_of("make test") == []
    assert faults_of("PYTHON=python3 make tests") == ["make tests"]
    assert faults_of("python examples/demo.py") == []
    assert faults_of("python examples/demos.py") == ["examples/demos.py"]
    assert faults_of("python examples/benchmarks/pruning.py --rows 3 --plot docs/none.png") == []
    assert faults_of("python examples/benchmarks/pruning.py --row 3") == [
        "examples/benchmarks/pruning.py --row"
    ]
    assert faults_of("python -m skbert convert-it a b") == ["skbert convert-it"]


# --- messages ------------------------------------------------------------------------------------


def messages_of(source: str) -> list[str]:
    """Every str of a module; "…" stands where a value is put in."""
    tree = ast.parse(source)
    plain = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    filled = [node.values for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    return [each for each in plain if isinstance(each, str)] + [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
        for parts in filled
    ]


def is_message(quoted: str, messages: list[str]) -> bool:
    """Whether one of the messages holds what is quoted, with anything for its dots."""
    pattern = re.compile(".*".join(map(re.escape, quoted.split("…"))), re.DOTALL)
    return any(pattern.search(message) for message in messages)


def test_quoted_messages_are_those_of_the_source() -> None:
    quoted = re.findall(r"^`(.+)`\n: ", PAGES["docs/troubleshooting.md"], re.MULTILINE)
    sources = (path.read_text(encoding="utf-8") for path in ROOT.glob("skbert/**/*.py"))
    messages = [message for source in sources for message in messages_of(source)]
    assert len(quoted) > 30
    assert [each for each in quoted if not is_message(each, messages)] == []


def test_faults_of_quoted_messages_are_found() -> None:
    messages = messages_of('raise E(f"X has {n} rows, "\n"but y has {m}.")')
    assert is_message("X has … rows, but y has ….", messages)
    assert is_message("…, but y has", messages)
    assert not is_message("X has … columns", messages)


# --- docstrings ----------------------------------------------------------------------------------


def examples_of(module: str) -> list[doctest.DocTest]:
    tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    return [each for each in tests if each.examples]


@pytest.mark.filterwarnings("ignore::skbert.exceptions.TruncationWarning")  # of odd texts
@pytest.mark.parametrize("module", FEWEST_EXAMPLES)
def test_examples_of_docstrings(module: str, minilm: Path) -> None:
    report, runner = io.StringIO(), doctest.DocTestRunner(verbose=False)
    examples = examples_of(module)
    assert sum(len(each.examples) for each in examples) >= FEWEST_EXAMPLES[module]
    assert not any(line.options.get(doctest.SKIP) for each in examples for line in each.examples)
    for each in examples:
        with working_folder(FILES.get(module)):
            runner.run(each, out=report.write)
    assert runner.failures == 0, report.getvalue()


def test_every_module_with_examples_is_run() -> None:
    names = {each.name for each in pkgutil.walk_packages(skbert.__path__, "skbert.")}
    sources = {name: importlib.util.find_spec(name).origin or "" for name in names}
    python = {name: Path(path) for name, path in sources.items() if path.endswith(".py")}
    assert len(python) > 50
    shown = {name for name, path in python.items() if ">>> " in path.read_text(encoding="utf-8")}
    assert shown == set(FEWEST_EXAMPLES)


def test_every_public_estimator_and_function_has_an_example() -> None:
    homes = (
        "", ".datasets", ".distributed", ".inspection", ".metrics", ".runtime", ".testing",
    )  # fmt: skip
    for home in homes:
        module = importlib.import_module(f"skbert{home}")
        for name in module.__all__:
            public = getattr(module, name)
            if callable(public) and name not in RESULTS:
                assert ">>> " in (public.__doc__ or ""), name


def test_the_table_of_families_is_what_their_records_say() -> None:
    spec = importlib.util.spec_from_file_location("families", ROOT / "docs" / "families.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = PAGES["README.md"]
    assert script.with_table(page) == page, "run python docs/families.py"
    assert all(f"| `{name}` |" in page for name in FAMILIES)
