"""The command line: ``python -m skbert``, followed by a command.

Depends on the standard library until the arguments are parsed, then on what the command needs.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skbert.exceptions import SkbertError

if TYPE_CHECKING:
    from collections.abc import Sequence

    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["main"]

_TEXTS = "columns with the texts: one, two for pairs, or several fields"
_STOPPED = "what is done is kept, and the same command goes on from there"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; an error of skbert ends it with the exit status 1.

    Parameters
    ----------
    arguments : sequence of str or None, default=None
        What follows ``python -m skbert``; None takes it from the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m skbert", description="Tools of skbert.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for add in (_add_fit, _add_predict, _add_embed, _add_convert):
        add(commands)
    parsed = vars(parser.parse_args(arguments))
    command = parsed.pop("command")
    try:
        written = _run(command, parsed)
    except SkbertError as exc:
        parser.exit(1, f"{parser.prog}: error: {exc}\n")
    except ModuleNotFoundError as exc:
        if exc.name != "pyarrow":
            raise
        parser.exit(1, f'{parser.prog}: error: {exc}. Type pip install "skbert[arrow]".\n')
    except KeyboardInterrupt:
        goes_on = f": {_STOPPED}" if command in {"embed", "predict"} else ""
        parser.exit(130, f"{parser.prog}: stopped{goes_on}\n")
    sys.stdout.write(f"{written}\n")


def _run(command: str, parsed: dict[str, Any]) -> Path:
    """Run a command; the path of what it wrote."""
    if command == "convert-tf":
        from skbert import convert_tf_checkpoint

        return convert_tf_checkpoint(**parsed)
    from skbert._streaming import commands

    written: Path = getattr(commands, command)(**parsed)
    return written


def _add_fit(commands: _Commands) -> None:
    fit = commands.add_parser(
        "fit", help="fit an estimator on the rows of a CSV or parquet file, and save it"
    )
    fit.add_argument("data", metavar="DATA", type=Path, help="CSV file with a header, or parquet")
    fit.add_argument("folder", metavar="FOLDER", type=Path, help="folder to make")
    fit.add_argument("--estimator", default="BertClassifier", help="default: BertClassifier")
    fit.add_argument("--label-columns", nargs="+", metavar="NAME", help="columns that are y")
    fit.add_argument("--text-columns", nargs="+", metavar="NAME",
                     help=f"{_TEXTS}; default: all but those of y")  # fmt: skip
    fit.add_argument("--model", metavar="FOLDER_OR_ID", help="the parameter model")
    fit.add_argument("--set", dest="settings", action="append", default=[], metavar="NAME=VALUE",
                     help="any other parameter, such as epochs=5; may be given again")  # fmt: skip


def _add_predict(commands: _Commands) -> None:
    predict = commands.add_parser(
        "predict", help="write a parquet file with what a model predicts for the rows of one"
    )
    predict.add_argument("model", metavar="MODEL", help="folder that save or export wrote")
    _add_files(predict)
    predict.add_argument("--probabilities", action="store_true",
                         help="add the probability of each class")  # fmt: skip


def _add_embed(commands: _Commands) -> None:
    embed = commands.add_parser(
        "embed", help="write a parquet file with the vectors of the rows of one"
    )
    embed.add_argument("model", metavar="MODEL", help="folder that save or export wrote, or any"
                       " encoder by folder or id")  # fmt: skip
    _add_files(embed)


def _add_files(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="INPUT", type=Path, help="parquet file")
    command.add_argument("target", metavar="OUTPUT", type=Path, help="parquet file to write")
    command.add_argument("--text-columns", nargs="+", metavar="NAME",
                         help=f"{_TEXTS}; default: those of fit")  # fmt: skip
    command.add_argument("--keep", nargs="*", metavar="NAME",
                         help="columns of INPUT to write beside the results; default: all",
                         )  # fmt: skip


def _add_convert(commands: _Commands) -> None:
    convert = commands.add_parser(
        "convert-tf",
        help="turn a TensorFlow checkpoint of BERT into a folder that every estimator opens",
        description="Turn a TensorFlow checkpoint of BERT into a folder that every estimator"
        " opens. TensorFlow is not needed.",
    )
    convert.add_argument("ckpt_prefix", metavar="CKPT_PREFIX",
                         help="path of the checkpoint up to, and without, .index")  # fmt: skip
    convert.add_argument("config_json", metavar="CONFIG_JSON", help="its bert_config.json")
    convert.add_argument("vocab_txt", metavar="VOCAB_TXT", help="its vocab.txt")
    convert.add_argument("out_dir", metavar="OUT_DIR", help="folder to make")
    convert.add_argument("--do-lower-case", action=argparse.BooleanOptionalAction,
                         help="whether the tokenizer lowers case; else read off the other files",
                         )  # fmt: skip


if __name__ == "__main__":
    # oneDNN, and torch above it, keep code for each product of each number of tokens that a batch
    # had, for 1,024 of them. With fewer a long run takes less memory, and no longer.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "16")
    main()
