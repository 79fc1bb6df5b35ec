"""Every format under seeded damage: opened, or refused by an error of skbert, and nothing else.

Opening a file runs no code, starts no process, reaches no file outside its folder, and takes
neither long nor much memory; `support.damage` watches that, and says how to try one case again.
"""

from __future__ import annotations

import stat
import sys
from random import Random
from typing import TYPE_CHECKING

import pytest
from support.damage import trying
from support.damage.bytes_and_json import change_bytes, change_json
from support.damage.formats import FORMATS, SAVED, damage, write_whole_files
from support.damage.trying import MOST_SECONDS, WRONG, Case, Outcome, try_cases
from support.damage.watching import MOST_BYTES
from support.damage.wrongs import WRONGS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.damage.bytes_and_json import Change

FEW = ("cache", "checkpoint of a fit", "checkpoint of a fit, sealed again")  # take long
QUICK = {name: 5 if name in FEW else 25 for name in FORMATS}  # cases of each format
SLOW = {name: 300 if name in FEW else 1_000 for name in FORMATS}
FOUND: list[Case] = [  # cases that found a defect
    ("config", 20234),  # a number where languages are listed
    ("tokenizer", 123),  # two words with one id, of which the library lost one
    ("tokenizer", 1179),
    ("TensorFlow", 95),  # a vocabulary that is a link to a file outside
    ("TensorFlow", 98),  # likewise a configuration
    ("TensorFlow", 173),  # a pipe
    ("TensorFlow", 214),  # /dev/zero
    ("TensorFlow", 249),  # a vocabulary of 1 TB
    ("cache", 11),  # /dev/zero
    ("cache", 303),  # a message of SQLite that quotes what is no UTF-8
    ("SQuAD", 502),  # half a surrogate pair
    ("checkpoint of a fit, sealed again", 32),  # words that there are not
    ("checkpoint of a fit, sealed again", 163),  # attributes of another type
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole folders of every format."""
    return write_whole_files(tmp_path_factory.mktemp("whole"))


def report(outcomes: list[Outcome]) -> str:
    """A line for each format, and one for each defect."""
    rows = ["| format | cases | opened | refused | slowest, s of a processor | most memory, MB |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    for name in dict.fromkeys(["all", *sorted(each.format for each in outcomes)]):
        own = [each for each in outcomes if name in ("all", each.format)]
        n_opened, n_refused = (
            sum(each.result == result for each in own) for result in ("accepted", "refused")
        )
        slowest = max(each.seconds for each in own)
        largest = max(each.n_bytes for each in own) / 1e6
        rows.append(
            f"| {name} | {len(own)} | {n_opened} | {n_refused} | {slowest:.2f} | {largest:.0f} |"
        )
    rows += [str(each) for each in outcomes if each.result == "defect"]
    return "\n".join(rows)


def check(outcomes: list[Outcome]) -> None:
    assert not [each for each in outcomes if each.result == "defect"], report(outcomes)
    assert max(each.seconds for each in outcomes) <= MOST_SECONDS
    assert max(each.n_bytes for each in outcomes) <= MOST_BYTES


@pytest.mark.long  # a process that imports everything
def test_damaged_files_are_refused_or_open(whole: Path, tmp_path: Path) -> None:
    cases = [(name, seed) for name, most in QUICK.items() for seed in range(most)]
    outcomes = try_cases([*FOUND, *cases], whole, tmp_path, n_processes=1)
    check(outcomes)
    assert len(outcomes) == len(cases) + len(FOUND)
    for name in FORMATS:  # the damage is neither too slight nor too heavy
        results = {each.result for each in outcomes if each.format == name}
        assert "accepted" in results or name in ("saved", "exported")  # every change is found
        assert "refused" in results or name in ("cache", "checkpoint of a fit")  # not used


@pytest.mark.slow  # minutes
@pytest.mark.timeout(3 * 3600)
def test_thousands_of_damaged_files(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [
        (name, 25 + seed)
        for seed in range(max(SLOW.values()))
        for name, most in SLOW.items()
        if seed < most
    ]
    with (tmp_path / "outcomes.txt").open("w", 1) as file:  # for a look at how far it is
        outcomes = try_cases(cases, whole, tmp_path, 3, lambda each: file.write(f"{each}\n"))
    with capsys.disabled():
        sys.stdout.write(f"\n{report(outcomes)}\n")
    assert len(outcomes) == len(cases) >= 10_000
    check(outcomes)


# --- the watch itself ----------------------------------------------------------------------------


@pytest.mark.long
def test_what_goes_wrong_is_noticed(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trying, "MOST_WAITING", 4.0)
    cases = [(WRONG, row) for row in range(len(WRONGS))]
    outcomes = try_cases(cases, whole, tmp_path, n_processes=1)
    for each, (wrong, message) in zip(outcomes, WRONGS.items(), strict=True):
        assert each.result == "defect", wrong
        assert message in each.what, wrong


@pytest.mark.parametrize("change", [change_bytes, change_json])
def test_a_seed_gives_the_same_damage_again(change: Callable[..., Change]) -> None:
    data = (SAVED / "classifier" / "config.json").read_bytes()
    made = [[change(Random(seed), data) for seed in range(300)] for _ in range(2)]
    assert made[0] == made[1]
    assert len({text for _, text in made[0]}) > 150


@pytest.mark.parametrize("name", FORMATS)
def test_a_seed_damages_a_folder_in_the_same_way_again(
    whole: Path, tmp_path: Path, name: str
) -> None:
    for seed in range(5):
        places = [tmp_path / f"{seed} {n}" for n in range(2)]
        done = [damage(Random(seed), name, whole, place) for place in places]
        assert done[0] == done[1]
        assert contents(places[0]) == contents(places[1])


def contents(folder: Path) -> dict[str, object]:
    """What lies in a folder: the bytes of files, and where links lead."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        is_readable = path.is_file() and not path.is_symlink() and path.stat().st_size < 10**7
        data = path.read_bytes() if is_readable else stat.S_IFMT(path.lstat().st_mode)
        found[str(path.relative_to(folder))] = path.readlink() if path.is_symlink() else data
    return found
