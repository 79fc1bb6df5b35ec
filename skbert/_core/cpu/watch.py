"""Whether weights are those that something was made of. Depends on torch and ``bindings``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter, is_
from typing import Any

import torch

from skbert._core.cpu.bindings.checks import addresses_of

__all__ = ["Watch"]

_VERSION = attrgetter("_version")


class Watch:
    """Notices when a weight of modules is changed, replaced or moved, or another attribute.

    Changes by ``.data`` that leave a weight in its place, and by fused optimizers, do not show.
    Those of weights that were made in inference mode, as by unpickling there, do not either.

    Parameters
    ----------
    modules : iterable of Module
        Whose own parameters are watched.
    others : sequence of tuple
        Attributes that are watched, too: the dict of an object, and a name.
    """

    def __init__(
        self, modules: Iterable[torch.nn.Module], others: Sequence[tuple[dict[str, Any], str]] = ()
    ) -> None:
        places = [(module._parameters, name) for module in modules for name in module._parameters]
        self._owners, self._names = zip(*places, *others, strict=True)
        self._values = [*self._now()]
        self._weights = [x for x in self._values[: len(places)] if x is not None]
        self._counted = [x for x in self._weights if not x.is_inference()]
        self._addresses, self._versions = self._seen_addresses(), self._seen_versions()

    def _now(self) -> Iterator[Any]:
        return map(dict.get, self._owners, self._names)

    def _seen_addresses(self) -> list[int]:
        return [*addresses_of(self._weights)]

    def _seen_versions(self) -> list[int]:
        return [*map(_VERSION, self._counted)]

    def has_moved(self) -> bool:
        """Whether a weight or an attribute is another than when this was made, or elsewhere."""
        is_same = all(map(is_, self._now(), self._values))
        return not is_same or self._seen_addresses() != self._addresses

    def has_changed(self) -> bool:
        """Whether something is not as it was when this was made."""
        return self.has_moved() or self._seen_versions() != self._versions
