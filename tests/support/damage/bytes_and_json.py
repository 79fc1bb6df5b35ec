"""Seeded changes of the contents of a file: of its bytes, and of the JSON in it."""

from __future__ import annotations

import copy
import json
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

OUTSIDE = "../outside"  # beside the folder of each case; what is there is bait
DEEP = "deep nesting, which json.dumps cannot write"
NUMBERS = (0, 1, -1, 2, 3, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1)
ODD: tuple[Any, ...] = (
    None, True, False, *NUMBERS, 10**30, -(10**9), 0.5, -0.0, 1e308, 1e-308, float("nan"),
    float("inf"), "", " ", "a", "0", "true", "\0", "\ud800", "\u202e", "[UNK]", "None", "../",
    OUTSIDE, f"{OUTSIDE}/model.safetensors", f"{OUTSIDE}/vocab.txt", "/etc/passwd", "/dev/zero",
    "evil.Evil", "evil.py", "os.system", "x" * 100_000, "(a+)+$", [], {}, [[]], [{}], {"a": 1},
    {"": None}, [0] * 20_000, ["a"] * 20_000, {str(row): row for row in range(5_000)}, DEEP,
)  # fmt: skip
KEYS: tuple[tuple[str, Any], ...] = (
    ("auto_map", {"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil", "AutoTokenizer": "evil.T"}),
    ("attn_implementation", "evil/kernels"),
    ("_attn_implementation", "evil/kernels"),
    ("_attn_implementation_internal", "evil/kernels"),
    ("quantization_config", {"quant_method": "evil"}),
    ("trust_remote_code", True),
    ("custom_pipelines", {"evil": {"impl": "evil.Evil"}}),
    ("tokenizer_class", "EvilTokenizer"),
    ("tokenizer_file", f"{OUTSIDE}/tokenizer.json"),
    ("vocab_file", f"{OUTSIDE}/vocab.txt"),
    ("fast_tokenizer_files", [f"{OUTSIDE}/tokenizer.json"]),
    ("chat_template", "{{ cycler.__init__.__globals__.os.system('true') }}"),
    ("name_or_path", OUTSIDE),
    ("_name_or_path", OUTSIDE),
    ("base_model_name_or_path", OUTSIDE),
    ("transformers_weights", f"{OUTSIDE}/model.safetensors"),
    ("torch_dtype", "evil"),
    ("dtype", "os.system"),
    ("architectures", ["EvilModel"]),
    ("model_type", "evil"),
    ("use_kernels", True),
    ("weight_map", {"x": f"{OUTSIDE}/model.safetensors"}),
    ("__class__", "os.system"),
    ("__reduce__", ["os.system", ["true"]]),
)

Change = tuple[str, bytes]  # what was done, and what came of it


# --- bytes -----------------------------------------------------------------------------------


def _part(random: Random, data: bytes) -> tuple[int, int]:
    """Begin and end of a part of some bytes, more often a short one near the beginning."""
    begin = random.randrange(len(data) + 1)
    if random.random() < 0.5:
        begin = min(begin, random.randrange(256))
    return begin, min(len(data), begin + random.choice((1, 2, 4, 8, 16, 64, 1024)))


def flip_bits(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 8)) if data else 0):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def overwrite(random: Random, data: bytes) -> bytes:
    begin, end = _part(random, data)
    size = end - begin
    new = random.choice((bytes(size), b"\xff" * size, b"\x80" * size, random.randbytes(size)))
    return data[:begin] + new + data[end:]


def cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def take_out(random: Random, data: bytes) -> bytes:
    begin, end = _part(random, data)
    return data[:begin] + data[end:]


def insert(random: Random, data: bytes) -> bytes:
    at, _ = _part(random, data)
    new = random.choice(
        (random.randbytes(random.randrange(1, 40)), bytes(64), b"{" * 9, b"[" * 99)
    )
    return data[:at] + new + data[at:]


def repeat(random: Random, data: bytes) -> bytes:
    begin, end = _part(random, data)
    return data[:end] + data[begin:end] * random.choice((1, 2, 50)) + data[end:]


def swap_parts(random: Random, data: bytes) -> bytes:
    (a, b), (c, d) = sorted((_part(random, data), _part(random, data)))
    return data if b > c else data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def write_number(random: Random, data: bytes) -> bytes:
    at, _ = _part(random, data)
    new = struct.pack(random.choice("<>") + "Q", random.choice(NUMBERS) % 2**64)
    new = new[: random.choice((1, 2, 4, 8))]
    return data[:at] + new + data[at + len(new) :]


BYTES: tuple[Callable[[Random, bytes], bytes], ...] = (
    flip_bits, flip_bits, overwrite, cut, take_out, insert, repeat, swap_parts, write_number,
)  # fmt: skip


def change_bytes(random: Random, data: bytes) -> Change:
    """Change some bytes in one way."""
    how = random.choice(BYTES)
    return how.__name__, how(random, data)


# --- JSON --------------------------------------------------------------------------------------


def change_json(random: Random, data: bytes) -> Change:
    """Change values, keys or the text of some JSON; of what is none, bytes."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return change_bytes(random, data)
    holder = [value]
    done = [_change_node(random, holder) for _ in range(random.choice((1, 1, 1, 1, 2, 4)))]
    text = json.dumps(holder[0], ensure_ascii=random.random() < 0.9 or _has_surrogates(holder[0]))
    depth = random.choice((100, 990, 5_000, 100_000))
    text = text.replace(json.dumps(DEEP), "[" * depth + "]" * depth)
    if random.random() < 0.05:
        done.append("text")
        text = _change_text(random, text)
    return f"JSON: {', '.join(done)}", text.encode()


def change_json_value(random: Random, value: Any) -> tuple[str, Any]:
    """Change a JSON value; what it holds is changed in place."""
    holder = [value]
    return _change_node(random, holder), holder[0]


def _odd(random: Random) -> Any:
    return copy.deepcopy(random.choice(ODD))


def _has_surrogates(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _change_text(random: Random, text: str) -> str:
    return random.choice((
        lambda: text.replace("{", '{"model_type": "bert", "model_type": "bert", ', 1),
        lambda: "\ufeff" + text,
        lambda: text + text,
        lambda: text + "\0",
        lambda: text.replace(":", ": -", 1),
        lambda: text.replace('"', "'"),
        lambda: text.replace(",", ",,", 1),
        lambda: text.replace("1", "1" * 5_000, 1),
    ))()  # fmt: skip


def _change_node(random: Random, holder: Any) -> str:
    """Change something at a place that a walk from the top leads to."""
    table, key = holder, 0
    while True:
        inside = table[key]
        if not isinstance(inside, dict | list) or not inside or random.random() < 0.15:
            break
        keys = list(inside) if isinstance(inside, dict) else range(len(inside))
        table, key = inside, random.choice(keys)
    how = random.choice((_replace, _replace, _tweak, _remove, _rename, _add, _copy, _nest))
    how(random, table, key)
    return f"{how.__name__[1:]} {str(key)[:40]}"


def _replace(random: Random, table: Any, key: Any) -> None:
    table[key] = _odd(random)


def _tweak(random: Random, table: Any, key: Any) -> None:
    match table[key]:
        case bool(value):
            table[key] = not value
        case int(value) | float(value):
            table[key] = random.choice((value + 1, value - 1, -value, value * 1000, float(value)))
        case str(value):
            cut_off = value[: random.randrange(len(value) + 1)]
            table[key] = random.choice((value.upper(), value + value, cut_off, f"../{value}"))
        case _:
            table[key] = _odd(random)


def _remove(random: Random, table: Any, key: Any) -> None:
    if isinstance(table, dict):
        del table[key]
    else:
        table[key] = None


def _rename(random: Random, table: Any, key: Any) -> None:
    if isinstance(table, dict):
        table[random.choice(("", f"{key}x", str(key)[1:], "../x", "\0", *table))] = table.pop(key)
    else:
        table.insert(key, _odd(random))


def _add(random: Random, table: Any, key: Any) -> None:
    if isinstance(table, dict):
        name, value = random.choice(KEYS)
        table[name] = copy.deepcopy(value)
    elif isinstance(table[key], dict):
        name, value = random.choice(KEYS)
        table[key][name] = copy.deepcopy(value)
    else:
        table.append(_odd(random))


def _copy(random: Random, table: Any, key: Any) -> None:
    """Put one value of a table in the place of another, or repeat an entry of a list."""
    if isinstance(table, dict):
        table[key] = table[random.choice(list(table))]
    else:
        table[key:key] = [table[key]] * random.choice((1, 3, 300))


def _nest(random: Random, table: Any, key: Any) -> None:
    table[key] = random.choice(([table[key]], {"value": table[key]}, {str(key): table[key]}))
