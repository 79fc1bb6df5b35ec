"""A tiny model of every family: its configuration, the model itself, and a folder of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers

from support.tokenizers import MAKERS, make_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from skbert._core.families.record import Family, Job

# What makes the layers of a family compute all that they can, in as small a model as can be.
_OWN: dict[str, dict[str, Any]] = {
    "albert": {"num_hidden_groups": 2},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 2},
    "deberta-v2": {
        "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 6,
        "share_att_key": True, "norm_rel_ebd": "layer_norm", "conv_kernel_size": 3,
        "conv_act": "gelu",
    },
    "eurobert": {"num_key_value_heads": 1, "head_dim": 8, "classifier_pooling": "mean"},
    "mobilebert": {"intra_bottleneck_size": 8},
    "modernbert": {"local_attention": 6},
    "squeezebert": {"embedding_size": 16},
    "xmod": {"languages": ["en_XX", "de_DE"], "default_language": "de_DE"},
}  # fmt: skip


def tiny_settings(family: Family, **changes: Any) -> dict[str, Any]:
    """Settings of a tiny model, by their names in config.json."""
    settings = {
        "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
        "intermediate_size": 24, "max_position_embeddings": 40, "embedding_size": 12,
        "pad_token_id": 1, "type_vocab_size": 2,
    }  # fmt: skip
    known = {
        key: value for key, value in settings.items() if key in {*family.sizes, "pad_token_id"}
    }
    return family.own_settings(known | _OWN.get(family.model_type, {}) | changes)


def tiny_of(family: Family, job: Job, *, seed: int = 0, **changes: Any) -> Any:
    """A tiny model of a family with the head for a job, whose weights are far from zero."""
    model_class = getattr(transformers, family.heads[job].name)
    config = getattr(transformers, family.config_class)(**tiny_settings(family, **changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                noise = torch.randn_like(weight)
                weight.add_(0.1 * noise) if weight.ndim < 2 else weight.mul_(6.0)
    return model


def own_tokenizer(family: Family) -> Any:
    """A tokenizer such as the family's usual checkpoints have."""
    usual = {"WordPiece": "bert", "BPE": "roberta", "Unigram": "xlm-roberta"}
    name = family.model_type
    return make_tokenizer(name if name in MAKERS else usual[family.tokenizers[0].model])


def save_own(family: Family, folder: Path, job: Job = "embedding", **changes: Any) -> Path:
    """Save a tiny model of a family with a tokenizer of its own kind; return the folder."""
    tokenizer = own_tokenizer(family)
    settings = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    settings |= {"max_position_embeddings": 128, **changes}
    tiny_of(family, job, **settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_tiny(
    family: Family, folder: Path, vocabulary: dict[str, int], job: Job = "embedding",
    **changes: Any,
) -> Path:  # fmt: skip
    """Save a tiny model of a family with a WordPiece tokenizer; return the folder."""
    settings = {"vocab_size": len(vocabulary), "pad_token_id": vocabulary["[PAD]"], **changes}
    settings = {"max_position_embeddings": 128, **settings}
    tiny_of(family, job, **settings).save_pretrained(folder)
    transformers.BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    return folder
