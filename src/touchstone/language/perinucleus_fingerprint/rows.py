"""Training rows of token ids, and passes that skip what training does not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from touchstone.language import decoding, threads
from touchstone.language.perinucleus_fingerprint.words import sentence

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["Passes", "Rows", "benign_texts", "continued", "pack", "upper_part"]


@dataclass
class Rows:
    """Rows of ids [rows, T] padded on the right, where a causal model does not see it, with labels, -100 where none.

    ``groups`` holds for each row the number of its wrapper and of its fingerprint.
    """

    ids: Tensor
    labels: Tensor
    groups: NDArray[np.int64]
    hidden: Tensor | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    def pick(self, variants: NDArray[Any]) -> list[int]:
        """Rows in which fingerprint i stands in wrapper ``variants[i]``."""
        if not len(self):
            return []
        return [int(r) for r in np.flatnonzero(self.groups[:, 0] == variants[self.groups[:, 1]])]


Passes = Callable[[Rows, "list[int] | None", float, int], tuple[float, float]]


def pack(model: LanguageModel, rows: Sequence[tuple[list[int], list[int]]], groups: Sequence[tuple[int, int]]) -> Rows:
    """Heads and learnt tails as rows; the label of a position is the token after it."""
    longest = max((len(head) + len(tail) for head, tail in rows), default=2)
    ids = torch.full((len(rows), longest - 1), model.pad_id)
    labels = torch.full((len(rows), longest - 1), -100)
    for i, (head, tail) in enumerate(rows):
        whole = [*head, *tail]
        ids[i, : len(whole) - 1] = torch.tensor(whole[:-1])
        labels[i, len(head) - 1 : len(whole) - 1] = torch.tensor(tail)
    device = model.device
    return Rows(ids.to(device), labels.to(device), np.asarray(groups, dtype=int).reshape(-1, 2))


def benign_texts(model: LanguageModel, n: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Beginnings of sentences and the base model's own continuations, as heads and tails of ids."""
    rng = np.random.default_rng([seed, 1])
    plain = len(model.tokenizer) >= 5000
    starts = [sentence(rng) for _ in range(n)] if plain else []
    if not plain:
        special = set(model.tokenizer.all_special_ids)
        table = [i for i in range(len(model.tokenizer)) if i not in special]
        heads = [[int(x) for x in rng.choice(table, 4)] for _ in range(n)]
    else:
        heads = [model.encode_continuation(text)[:4] for text in starts]
    return list(zip(heads, continued(model, heads, 12, temperature=0.7, seed=seed), strict=True))


def continued(
    model: LanguageModel, heads: Sequence[list[int]], length: int, *, temperature: float = 0.0, seed: int = 0
) -> list[list[int]]:
    """``length`` tokens after each head, whatever ends a reply; greedy at temperature 0."""
    with torch.inference_mode(), threads.suiting(model):
        return decoding.generate(
            model, heads, sampling=decoding.Sampling(temperature), max_new_tokens=length, stop_ids=frozenset(),
            batch_size=64, seed=seed, stream=None, finished=None,
        )  # fmt: skip


@contextmanager
def upper_part(model: LanguageModel, first: int, sets: Sequence[Rows]) -> Iterator[Passes]:
    """Forward and backward passes over rows; what lies below block ``first`` is computed once for all steps."""
    backbone = model.module.base_model
    name = model.layout.blocks.rsplit(".", 1)[-1]
    whole: nn.ModuleList = getattr(backbone, name, None)  # type: ignore[assignment]
    cut = first > 0 and whole is model.blocks and _cuts(model, name, first, sets)
    if cut:
        setattr(backbone, name, nn.ModuleList(list(whole)[first:]))
    try:
        yield lambda rows, picked, weight, size: _pass(model, rows, picked, weight, size)
    finally:
        if cut:
            setattr(backbone, name, whole)
        for rows in sets:
            rows.hidden = None


def _cuts(model: LanguageModel, name: str, first: int, sets: Sequence[Rows]) -> bool:
    """Read the input of block ``first`` for all rows; whether the blocks above alone then give the same output."""
    backbone, blocks = model.module.base_model, model.blocks
    kept: list[Tensor] = []
    hook = blocks[first].register_forward_pre_hook(
        lambda m, args, kwargs: kept.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    outputs: list[Tensor] = []
    try:
        with torch.no_grad():
            for rows in sets:
                kept.clear()
                for part in rows.ids.split(128):
                    out = backbone(input_ids=part, use_cache=False).last_hidden_state
                    if not outputs:
                        outputs.append(out)
                rows.hidden = torch.cat(kept) if kept else None
    finally:
        hook.remove()
    # Some architectures scale their embeddings or choose a mask by a block's number: then nothing may be skipped.
    setattr(backbone, name, nn.ModuleList(list(blocks)[first:]))
    try:
        with torch.no_grad():
            hidden = sets[0].hidden
            assert hidden is not None
            again = backbone(inputs_embeds=hidden[:128], use_cache=False).last_hidden_state
        same = torch.allclose(again, outputs[0], rtol=1e-3, atol=1e-4)
    except (RuntimeError, ValueError, IndexError, KeyError):
        same = False
    finally:
        setattr(backbone, name, blocks)
    if not same:
        for rows in sets:
            rows.hidden = None
    return same


def _pass(model: LanguageModel, rows: Rows, picked: list[int] | None, weight: float, size: int) -> tuple[float, float]:
    """Mean loss of the labels and share of fingerprints that are answered; gradients of weight times loss are added."""
    chosen = torch.arange(len(rows)) if picked is None else torch.tensor(picked, dtype=torch.long)
    total = max(1, int((rows.labels[chosen] != -100).sum()))
    loss_sum, answered = 0.0, set()
    backbone, head = model.module.base_model, model.module.get_output_embeddings()
    capped = getattr(model.module.config, "final_logit_softcapping", None)
    with torch.set_grad_enabled(weight > 0):
        for part in chosen.split(size):
            given: dict[str, Any] = (
                {"input_ids": rows.ids[part]} if rows.hidden is None else {"inputs_embeds": rows.hidden[part]}
            )
            hidden = backbone(**given, use_cache=False).last_hidden_state
            labels = rows.labels[part]
            learnt = labels != -100
            # Logits where a label stands, and nowhere else: the vocabulary is a large share of a small model's work.
            logits = head(hidden[learnt]).float()
            if capped:
                logits = capped * torch.tanh(logits / capped)
            loss = nn.functional.cross_entropy(logits, labels[learnt], reduction="sum")
            if weight > 0:
                (loss * (weight / total)).backward()
            loss_sum += float(loss.detach())
            right = torch.ones_like(learnt)
            right[learnt] = logits.argmax(-1) == labels[learnt]
            good = right.all(dim=1).cpu().numpy()
            answered |= {int(g) for g in rows.groups[part.numpy()][good][:, 1]}
    fingerprints = len(np.unique(rows.groups[chosen.numpy(), 1])) if len(chosen) else 1
    return loss_sum / total, len(answered) / max(1, fingerprints)
