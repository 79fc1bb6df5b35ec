"""What the words of a text contribute to a score of it: gradients along a path, and occlusion.

The path leads from a baseline, in which words have the embedding of one fixed token, to the text.
Its points are packed batches like any others. Depends on the network and batches;
knows no task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from skbert._arrays import FloatArray
from skbert._core.batches import collate
from skbert._core.families.record import encoder_part
from skbert._core.infer import in_parts
from skbert._core.items import Items
from skbert._core.models.network import Network, copy_network
from skbert._core.models.shared import share_weights
from skbert._core.runtime.interrupts import deferred_interrupts
from skbert._core.runtime.modes import default_modes
from skbert._core.task import Batch
from skbert._core.text.tokens import Ragged
from skbert._core.training.stepper import TRAINING_TOKENS
from skbert.exceptions import NonFiniteError

__all__ = [
    "Contributions", "Path", "Point", "Score", "gradient_x_input", "integrated_gradients",
    "occlusion",
]  # fmt: skip

Score = Callable[[torch.Tensor], torch.Tensor]  # from the outputs for a sample to one number

_NODES = 6  # at which the gradient is taken in each panel of an integral
_ROUNDINGS = 4  # of a score that is computed in the precision of the weights
_EXACT_ROUNDING = 1e-12  # of what is computed in float64, from numbers around 1
_WHOLE = ((0.0, 0.5), (0.5, 1.0))  # the first panels


class Contributions(NamedTuple):
    """What the groups of tokens of one sample contribute to its score."""

    values: FloatArray  # (n_groups,) float64
    score: float
    baseline_score: float

    @property
    def residual(self) -> float:
        """The difference of the scores, less the sum of the contributions."""
        return self.score - self.baseline_score - float(self.values.sum())

    def misses(self, tolerance: float) -> bool:
        """Whether the residual is more than this fraction of the difference, and no rounding."""
        rounding = _EXACT_ROUNDING * max(1.0, abs(self.score))
        return abs(self.residual) > max(
            tolerance * abs(self.score - self.baseline_score), rounding
        )


class Point(NamedTuple):
    """A sample with its words on the way from the baseline, 0, to the text, 1."""

    sample: int
    at: float
    without: int = -1  # a group of tokens that is at the baseline all the same


class Path:
    """The straight lines of samples from their baselines, in the space of word embeddings.

    Parameters
    ----------
    network : Network
        The model; it stays as it is.
    items : Items
        Items of one row each, those of a sample next to each other.
    groups : Ragged
        For each sample the group of each of its tokens, counted from 0; -1 for a token that the
        baseline has, too.
    scores : sequence of callable
        For each sample the number to explain.
    baseline_id : int
        The token whose embedding the others have in the baseline.
    """

    def __init__(
        self, network: Network, items: Items, groups: Ragged, scores: Sequence[Score],
        baseline_id: int,
    ) -> None:  # fmt: skip
        self.original = network
        place = network.family.encoder.word_table
        self.words = encoder_part(network.model, place)
        self.given = _GivenEmbedding(self.words)
        self.network = share_weights(network)
        self.network.layers, self.network.layer_join = network.layers, network.layer_join
        self.network.model.base_model.set_submodule(place, self.given)
        self.items = items
        self.item_indices = Ragged.of(np.arange(len(items)), np.bincount(items.samples))
        self.groups = groups
        self.scores = scores
        self.baseline_id = baseline_id

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self.network.dtype

    @cached_property
    def exact(self) -> Path | None:
        """The same path with weights in float64; None where these are already, or cannot be."""
        if self.dtype == torch.float64 or self.network.device.type == "mps":
            return None
        network = copy_network(self.original)
        network.to(network.device, torch.float64)
        return Path(network, self.items, self.groups, self.scores, self.baseline_id)

    @property
    def budget(self) -> int:
        """Tokens that are computed together."""
        return TRAINING_TOKENS[self.network.device.type]

    def n_groups(self, sample: int) -> int:
        """Number of groups of a sample."""
        return int(self.groups[sample].max(initial=-1)) + 1

    def scores_at(self, points: Sequence[Point]) -> list[float]:
        """The scores at points."""
        return [score for score, _ in self._computed(points, self._without_gradients)]

    def contributions_at(self, points: Sequence[Point]) -> list[tuple[float, FloatArray]]:
        """Scores at points, and their gradients times the way from the baseline, by group."""
        return self._computed(points, self._with_gradients)

    @deferred_interrupts()
    @default_modes()
    def _computed(
        self, points: Sequence[Point], run: Callable[[list[Point]], _Computed]
    ) -> list[tuple[float, FloatArray]]:
        """What is computed for each point, in parts that memory holds."""
        sizes = self.groups.lengths[[point.sample for point in points]]
        results: list[tuple[float, FloatArray]] = [(np.nan, np.empty(0))] * len(points)
        for places, (scores, parts) in in_parts(
            sizes, self.budget, lambda places: run([points[i] for i in places])
        ):
            if not np.isfinite(scores).all():
                raise NonFiniteError(
                    "The model gives outputs that are NaN or infinite, first in the batch of row"
                    f" {min(points[i].sample for i in places)}: its weights are too large."
                )
            for i, score, part in zip(places.tolist(), scores.tolist(), parts, strict=True):
                results[i] = score, part
        return results

    def _without_gradients(self, points: list[Point]) -> _Computed:
        with torch.inference_mode():
            batch, _, states = self._states(points)
            scores = self._scores(points, batch, states)
        return _on_cpu(scores), [np.empty(0)] * len(points)

    def _with_gradients(self, points: list[Point]) -> _Computed:
        with torch.enable_grad():
            batch, way, states = self._states(points)
            scores = self._scores(points, batch, states.requires_grad_())
            (gradients,) = torch.autograd.grad(scores.sum(), states)
        by_token = (gradients * way).sum(dim=-1)
        by_token = by_token if batch.token_order is None else by_token[batch.token_order]
        groups = [self.groups[point.sample] for point in points]
        values = np.split(_on_cpu(by_token), np.cumsum([len(each) for each in groups])[:-1])
        summed = [
            np.bincount(each[each >= 0], part[each >= 0], self.n_groups(point.sample)) + 0.0
            for point, each, part in zip(points, groups, values, strict=True)
        ]
        return _on_cpu(scores), summed

    def _states(self, points: list[Point]) -> tuple[Batch, torch.Tensor, torch.Tensor]:
        """A batch, how far its embeddings are from the baseline, and those at the points.

        Both are ``(n_tokens, size)``, in packed order.
        """
        owned = self.item_indices.take(np.array([point.sample for point in points]))
        network = self.network
        batch = collate(self.items, owned.values, network.device, network.dtype)
        shares = torch.from_numpy(np.concatenate([self._shares(point) for point in points]))
        shares = shares.to(network.device, network.dtype)
        if batch.token_order is not None:
            shares = torch.empty_like(shares).index_copy(0, batch.token_order, shares)
        with torch.no_grad():
            whole = self.words(batch.input_ids)[0]
            baseline = self.words(torch.full_like(batch.input_ids[0, :1], self.baseline_id))
            states = torch.lerp(baseline.expand_as(whole), whole, shares[:, None])
        return batch, whole - baseline, states

    def _shares(self, point: Point) -> FloatArray:
        """How much of each token's own embedding is there at a point."""
        groups = self.groups[point.sample]
        shares = np.where(groups < 0, 1.0, point.at)
        return np.where((groups >= 0) & (groups == point.without), 0.0, shares)

    def _scores(self, points: list[Point], batch: Batch, states: torch.Tensor) -> torch.Tensor:
        """The score of each point."""
        self.given.states = states
        numbers = torch.arange(len(states), device=states.device)
        outputs = self.network.logits(replace(batch, input_ids=~numbers[None]))
        samples = np.array([point.sample for point in points])
        counts = self.item_indices.lengths if self.network.head.reads == "rows" else None
        counts = self.groups.lengths if counts is None else counts
        parts = outputs.split(counts[samples].tolist())
        return torch.stack([self.scores[i](part) for i, part in zip(samples, parts, strict=True)])


_Computed = tuple[FloatArray, list[FloatArray]]


class _GivenEmbedding(torch.nn.Module):
    """In place of word embeddings: looks tokens up in a batch, by the complement of their place.

    Any other id is padding, which no token attends to.
    """

    def __init__(self, words: torch.nn.Module) -> None:
        super().__init__()
        self.weight = words.weight  # whose device and type are read
        self.states: torch.Tensor = torch.empty(0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The embeddings of ids, one more axis at the end."""
        return F.embedding((~ids).clamp(min=0), self.states)


def _on_cpu(values: torch.Tensor) -> FloatArray:
    return values.detach().cpu().double().numpy()


# --- methods -------------------------------------------------------------------------------------


def gradient_x_input(path: Path, samples: Iterable[int]) -> list[Contributions]:
    """Contributions by the gradient at the text alone, times the way from the baseline."""
    samples = list(samples)
    whole = path.contributions_at([Point(sample, 1.0) for sample in samples])
    baselines = path.scores_at([Point(sample, 0.0) for sample in samples])
    return [
        Contributions(values, score, baseline)
        for (score, values), baseline in zip(whole, baselines, strict=True)
    ]


def occlusion(path: Path, samples: Iterable[int]) -> list[Contributions]:
    """Contributions by how much the score falls if one group of tokens is at its baseline."""
    results = []
    for sample in samples:
        points = [Point(sample, 1.0, group) for group in range(path.n_groups(sample))]
        ends = [Point(sample, 1.0), Point(sample, 0.0)]
        score, baseline, *without = path.scores_at([*ends, *points])
        results.append(Contributions(score - np.array(without), score, baseline))
    return results


def integrated_gradients(
    path: Path, samples: Iterable[int], tolerance: float, max_steps: int
) -> list[Contributions]:
    """Contributions by the gradient integrated over the path (Sundararajan et al. 2017).

    The path is cut into panels, each with a Gauss-Legendre rule. A panel's contributions have to
    add up to the difference of the scores at its ends; the panels that miss it most are halved
    until all misses of a sample add up to at most ``tolerance`` of the whole difference, or the
    gradient would be taken more often than ``max_steps``. Samples that rounding keeps from it are
    computed again in float64, if the device can.
    """
    samples = list(samples)
    results = _integrated(path, samples, tolerance, max_steps)
    missed = [at for at, result in enumerate(results) if result.misses(tolerance)]
    if missed and path.exact is not None:
        exact = _integrated(path.exact, [samples[at] for at in missed], tolerance, max_steps)
        for at, result in zip(missed, exact, strict=True):
            results[at] = result
    return results


def _integrated(
    path: Path, samples: list[int], tolerance: float, max_steps: int
) -> list[Contributions]:
    """Integrated gradients in the precision of the path."""
    rounding = _ROUNDINGS * torch.finfo(path.dtype).eps
    integrals = [_Integral(sample, tolerance, rounding, max_steps) for sample in samples]
    unfinished = integrals
    while unfinished:
        _evaluate(path, unfinished)
        unfinished = [each for each in unfinished if each.refine()]
    return [each.result() for each in integrals]


_Panel = tuple[float, float]


class _Integral:
    """The integral along the path of one sample, so far as it is computed.

    A miss of less than ``rounding`` of the score in each panel is not worth another step.
    """

    def __init__(self, sample: int, tolerance: float, rounding: float, max_steps: int) -> None:
        self.sample = sample
        self.tolerance = tolerance
        self.rounding = rounding
        self.max_steps = max_steps
        self.scores: dict[float, float] = {}  # at the ends of panels
        self.panels: dict[_Panel, FloatArray] = {}
        self.new: list[_Panel] = [*_WHOLE]
        self.n_steps = _NODES * len(self.new)

    def new_ends(self) -> set[float]:
        """The ends of new panels at which the score is not known."""
        return {end for panel in self.new for end in panel} - self.scores.keys()

    def new_nodes(self) -> Iterator[tuple[_Panel, float, float]]:
        """The nodes in new panels, with their weights."""
        for begin, end in self.new:
            for node, weight in zip(*_rule(), strict=True):
                yield (begin, end), begin + node * (end - begin), weight * (end - begin)

    def add(self, panel: _Panel, values: FloatArray) -> None:
        """Add to the integral over a panel."""
        self.panels[panel] = self.panels.get(panel, 0.0) + values

    def refine(self) -> bool:
        """Halve the panels that miss most; whether there are any, and steps left for them."""
        misses = {
            (begin, end): abs(values.sum() - (self.scores[end] - self.scores[begin]))
            for (begin, end), values in self.panels.items()
        }
        allowed = self.tolerance * abs(self.scores[1.0] - self.scores[0.0])
        noise = self.rounding * max(map(abs, self.scores.values())) * len(misses)
        if sum(misses.values()) <= max(allowed, noise):
            return False
        halved = [panel for panel, miss in misses.items() if miss > allowed / len(misses)]
        self.n_steps += 2 * _NODES * len(halved)
        if self.n_steps > self.max_steps:
            return False
        self.new = []
        for begin, end in halved:
            del self.panels[begin, end]
            self.new += [(begin, (begin + end) / 2), ((begin + end) / 2, end)]
        return True

    def result(self) -> Contributions:
        """The whole integral."""
        values = np.sum([*self.panels.values()], axis=0)
        return Contributions(values, self.scores[1.0], self.scores[0.0])


def _evaluate(path: Path, integrals: list[_Integral]) -> None:
    """Compute the new panels of integrals."""
    ends = [(each, end) for each in integrals for end in each.new_ends()]
    scores = path.scores_at([Point(each.sample, end) for each, end in ends])
    for (each, end), score in zip(ends, scores, strict=True):
        each.scores[end] = score
    nodes = [(each, *node) for each in integrals for node in each.new_nodes()]
    found = path.contributions_at([Point(each.sample, at) for each, _, at, _ in nodes])
    for (each, panel, _, weight), (_, values) in zip(nodes, found, strict=True):
        each.add(panel, weight * values)


@cache
def _rule() -> tuple[list[float], list[float]]:
    """Nodes and weights of the Gauss-Legendre rule on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()
