"""The layers of a head that lie beside the encoder, as modules of sentence-transformers.

Knows headers of files only, as `strict` reads them. config.json says whose head it is, and which
of its layers each module is; without that they are no head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from skbert._core.checkpoints.sentences import CHAIN, HEAD
from skbert._core.checkpoints.strict import SINGLE, TensorFile, tensor_file
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from skbert._core.checkpoints.sentences import Modules
    from skbert._core.checkpoints.strict import Members
    from skbert._core.families.record import Family

__all__ = ["read_head"]


def read_head(
    members: Members, modules: Modules, family: Family, named: object
) -> tuple[list[str], tuple[TensorFile, ...]]:
    """The class of the head, and the files of its layers; neither where there is none.

    ``named`` is what config.json says. The tensors have the names that they have in the class.
    """
    folders = [subfolder for kind, subfolder in modules or () if kind == "Dense"]
    match named:
        case None:
            return [], ()
        case {"class": str(name), "layers": [*paths], **rest} if not rest and all(
            _is_of_head(family, name, path) for path in paths
        ):
            if not len(folders) == len(paths) > 0:
                raise _refusal(members, f"{len(paths)} layers, where {CHAIN} lists {len(folders)}")
            return [name], tuple(map(_layer, [members] * len(paths), folders, paths))
        case _:
            raise _refusal(members, str(named)[:120])


def _is_of_head(family: Family, name: str, path: object) -> bool:
    prefixes = [each for job in family.jobs_of(name) for each in family.heads[job].prefixes]
    return isinstance(path, str) and f"{path}.".startswith(tuple(prefixes))


def _layer(members: Members, subfolder: str, path: str) -> TensorFile:
    name = f"{subfolder}/{SINGLE}"
    if not members.has(name):
        raise _refusal(members, f"the layer {path}, but {name} is missing")
    file = tensor_file(members, name)
    if not {"linear.weight"} <= file.tensors.keys() <= {"linear.weight", "linear.bias"}:
        raise _refusal(members, f"the layer {path}, but {name} holds {sorted(file.tensors)[:4]}")
    renamed = {f"{path}.{key.removeprefix('linear.')}": at for key, at in file.tensors.items()}
    return replace(file, tensors=renamed)


def _refusal(members: Members, what: str) -> ModelError:
    return ModelError(
        f"{members.folder / 'config.json'} says that the model has the head {what}. Restore the"
        f" folder from a whole copy, or remove {HEAD} from the file to use its encoder alone."
    )
