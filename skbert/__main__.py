"""The command line: ``python -m skbert convert-tf CKPT_PREFIX CONFIG_JSON VOCAB_TXT OUT_DIR``.

Depends on the standard library until the arguments are parsed, then on `_conversion`.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from skbert.exceptions import SkbertError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; an error of skbert ends it with the exit status 1.

    Parameters
    ----------
    arguments : sequence of str or None, default=None
        What follows ``python -m skbert``; None takes it from the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m skbert", description="Tools of skbert.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
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
    parsed = parser.parse_args(arguments)

    from skbert import convert_tf_checkpoint

    try:
        folder = convert_tf_checkpoint(**vars(parsed))
    except SkbertError as exc:
        parser.exit(1, f"{parser.prog}: error: {exc}\n")
    sys.stdout.write(f"{folder}\n")


if __name__ == "__main__":
    main()
