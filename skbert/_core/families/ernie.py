"""The record of ERNIE, which is BERT with embeddings of tasks."""

from __future__ import annotations

from dataclasses import replace

from skbert._core.families.bert import BERT
from skbert._core.families.record import Size
from skbert._core.families.settings import FLAG

__all__ = ["ERNIE"]

ERNIE = replace(
    BERT,
    model_type="ernie",
    config_class="ErnieConfig",
    sizes={**BERT.sizes, "task_type_vocab_size": Size(3, 1, 1024)},
    checks={"use_task_id": FLAG},
    heads={
        job: replace(head, name=head.name.replace("BertLMHeadModel", "ErnieForCausalLM").replace(
            "Bert", "Ernie"))
        for job, head in BERT.heads.items()
    },
    encoder=BERT.encoder._replace(embedding_norm=""),  # tasks may have a table, too
)  # fmt: skip
