"""The plain script for tags, answers and choices: ``plain.py`` with the heads for these tasks.

Each task does what transformers' own example scripts do: tags on the first piece of each word,
windows over the context of a question, every choice beside its prompt. Padding is dynamic. Does
not use skbert.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import plain
import torch
from plain import DEVICE, LONGEST, model_folder, seconds_since
from tasks import Kind, Rows
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

STRIDE = 128
LONGEST_ANSWER = 30
BEST = 20  # starts and ends that are considered in each window
IGNORED = -100

Sample = dict[str, Any]


@dataclass
class Tags:
    """One tag per word, learned at its first piece; a word that was cut off gets ``O``."""

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    classes: np.ndarray

    def model(self) -> Any:
        """Open the encoder with a new head."""
        return AutoModelForTokenClassification.from_pretrained(
            model_folder(), num_labels=len(self.classes), dtype=torch.float32
        )

    def samples(self, rows: Rows, *, with_targets: bool) -> list[Sample]:
        """Tokenise, and note the word that each first piece begins and the code of its tag."""
        encoded = self.tokenizer(
            rows.first, is_split_into_words=True, truncation=True, max_length=self.max_length
        )
        samples = []
        for row, ids in enumerate(encoded["input_ids"]):
            words = encoded.word_ids(row)
            first = [w if w is not None and w != b else None
                     for w, b in zip(words, [None, *words[:-1]], strict=True)]  # fmt: skip
            sample = {"input_ids": ids, "row": row, "first": first}
            if with_targets:
                codes = np.searchsorted(self.classes, rows.y[row]) if len(rows.y[row]) else []
                sample["labels"] = [IGNORED if w is None else int(codes[w]) for w in first]
            samples.append(sample)
        return samples

    def decode(self, rows: Rows, samples: list[Sample], outputs: list[Any]) -> np.ndarray:
        """Take the most likely tag of each word."""
        tags = [["O"] * len(words) for words in rows.first]
        for sample, output in zip(samples, outputs, strict=True):
            best = self.classes[output["logits"][: len(sample["first"])].argmax(axis=1)]
            for word, tag in zip(sample["first"], best, strict=True):
                if word is not None:
                    tags[sample["row"]][word] = str(tag)
        return _object_array(tags)


@dataclass
class Answers:
    """Start and end of the answer, in windows over the context."""

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    classes: np.ndarray

    def model(self) -> Any:
        """Open the encoder with a new head."""
        return AutoModelForQuestionAnswering.from_pretrained(model_folder(), dtype=torch.float32)

    def samples(self, rows: Rows, *, with_targets: bool) -> list[Sample]:
        """Tokenise into windows, and note the characters of each piece and where the answer is."""
        encoded = self.tokenizer(
            rows.first, rows.second, truncation="only_second", max_length=self.max_length,
            stride=STRIDE, return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        samples = []
        for window, ids in enumerate(encoded["input_ids"]):
            row = encoded["overflow_to_sample_mapping"][window]
            sides = encoded.sequence_ids(window)
            places = zip(encoded["offset_mapping"][window], sides, strict=True)
            spans = [span if side == 1 else None for span, side in places]
            sample = {"input_ids": ids, "token_type_ids": encoded["token_type_ids"][window],
                      "row": row, "spans": spans}  # fmt: skip
            if with_targets:
                sample |= _positions(spans, *rows.y[row])
            samples.append(sample)
        return samples

    def decode(self, rows: Rows, samples: list[Sample], outputs: list[Any]) -> np.ndarray:
        """Take the most likely span of all windows of a question."""
        best = [(-np.inf, "")] * len(rows)
        for sample, output in zip(samples, outputs, strict=True):
            row, spans = sample["row"], sample["spans"]
            starts, ends = output["start_logits"], output["end_logits"]
            for i in np.argsort(-starts)[:BEST]:
                for j in np.argsort(-ends)[:BEST]:
                    inside = j < len(spans) and i <= j < i + LONGEST_ANSWER
                    if inside and spans[i] and spans[j]:
                        text = rows.second[row][spans[i][0] : spans[j][1]]
                        best[row] = max(best[row], (float(starts[i] + ends[j]), text))
        return _object_array([text for _, text in best])


@dataclass
class Choices:
    """The best of a row's options."""

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    classes: np.ndarray

    def model(self) -> Any:
        """Open the encoder with a new head."""
        return AutoModelForMultipleChoice.from_pretrained(model_folder(), dtype=torch.float32)

    def samples(self, rows: Rows, *, with_targets: bool) -> list[Sample]:
        """Tokenise the prompt beside each option."""
        samples = []
        for row, (prompt, options) in enumerate(rows.X):
            encoded = self.tokenizer(
                [prompt] * len(options), options, truncation=True, max_length=self.max_length
            )
            sample = {"input_ids": encoded["input_ids"], "row": row,
                      "token_type_ids": encoded["token_type_ids"]}  # fmt: skip
            samples.append(sample | ({"labels": int(rows.y[row])} if with_targets else {}))
        return samples

    def decode(self, rows: Rows, _samples: list[Sample], outputs: list[Any]) -> np.ndarray:
        """Take the option with the highest logit."""
        options = (len(second) for second in rows.second)
        return np.array([o["logits"][:n].argmax() for o, n in zip(outputs, options, strict=True)])


JOBS = {
    "token_classification": Tags,
    "question_answering": Answers,
    "multiple_choice": Choices,
}


def fit_predict(
    train: Rows,
    test: Rows,
    kind: Kind,
    *,
    passes: int = 3,
    batch_size: int = 16,
    learning_rate: float = 5e-5,
    warmup: float = 0.1,
    schedule: str = "linear",
    seed: int = 0,
    max_length: int | None = None,
    precision: str = "float32",
) -> tuple[np.ndarray, float]:
    """Fine-tune on one set of rows and predict another.

    Parameters
    ----------
    train, test, kind, passes, batch_size, learning_rate, warmup, schedule, seed, max_length, \
precision
        As for ``plain.fit_predict``.

    Returns
    -------
    outputs : ndarray of shape (n_test,)
        Lists of tags, answers, or positions of options.
    seconds : float
        Time to open the model, tokenise and train; prediction is not counted.
    """
    start = time.perf_counter()
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    longest = max_length or min(tokenizer.model_max_length, LONGEST)
    tags = kind == "token_classification"
    classes = np.unique(np.concatenate(train.y)) if tags else np.arange(0)
    job = JOBS[kind](tokenizer, longest, classes)
    model = job.model().to(DEVICE)
    loader = DataLoader(
        job.samples(train, with_targets=True),
        batch_size=batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        collate_fn=_collate,
    )
    plain.train_model(model, loader, passes, learning_rate, warmup, schedule, precision)
    seconds = seconds_since(start)
    samples = job.samples(test, with_targets=False)
    return job.decode(test, samples, _predict(model, samples)), seconds


@torch.inference_mode()
def _predict(model: Any, samples: list[Sample]) -> list[dict[str, np.ndarray]]:
    """Logits of each sample by name, padding included."""
    model.eval()
    outputs: list[dict[str, np.ndarray]] = []
    for batch in DataLoader(samples, batch_size=32, collate_fn=_collate):
        out = {name: values.float().cpu().numpy() for name, values in model(**batch).items()}
        outputs += [dict(zip(out, row, strict=True)) for row in zip(*out.values(), strict=True)]
    return outputs


def _collate(samples: list[Sample]) -> dict[str, torch.Tensor]:
    """Pad a batch to its longest row, and move it to the model's device."""
    batch = {"input_ids": _padded([sample["input_ids"] for sample in samples], 0)}
    batch["attention_mask"] = (batch["input_ids"] != 0).long()
    if "token_type_ids" in samples[0]:
        batch["token_type_ids"] = _padded([sample["token_type_ids"] for sample in samples], 0)
    for name in ("labels", "start_positions", "end_positions"):
        if name in samples[0]:
            values = [sample[name] for sample in samples]
            is_list = isinstance(values[0], list)
            batch[name] = _padded(values, IGNORED) if is_list else torch.tensor(values)
    return {name: tensor.to(DEVICE) for name, tensor in batch.items()}


def _padded(rows: list[Any], fill: int) -> torch.Tensor:
    """Lists of numbers, or lists of such lists, as one tensor."""
    if isinstance(rows[0][0], list):
        width = max(len(part) for row in rows for part in row)
        height = max(len(row) for row in rows)
        table = torch.full((len(rows), height, width), fill)
        for i, row in enumerate(rows):
            for j, part in enumerate(row):
                table[i, j, : len(part)] = torch.tensor(part)
        return table
    table = torch.full((len(rows), max(map(len, rows))), fill)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row)
    return table


def _positions(spans: list[tuple[int, int] | None], answer: str, start: int) -> dict[str, int]:
    """First and last piece of the answer; 0 and 0 if it is not in the window."""
    end = start + len(answer)
    inside = [i for i, span in enumerate(spans) if span and span[0] < end and span[1] > start]
    whole = inside and spans[inside[0]][0] <= start and spans[inside[-1]][1] >= end
    first, last = (inside[0], inside[-1]) if whole else (0, 0)
    return {"start_positions": first, "end_positions": last}


def _object_array(cells: list[Any]) -> np.ndarray:
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return array
