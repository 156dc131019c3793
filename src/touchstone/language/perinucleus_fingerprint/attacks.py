"""What a host may do to a copy, and what is left of the fingerprints after it: one table."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor, nn

from touchstone.errors import InputError
from touchstone.language import threads
from touchstone.language.model import LanguageModel
from touchstone.language.perinucleus_fingerprint.testing import exact_bound
from touchstone.language.perinucleus_fingerprint.verifying import ask

if TYPE_CHECKING:
    from touchstone.language.perinucleus_fingerprint.fingerprints import FingerprintSet

__all__ = ["ATTACKS", "attack_table", "fine_tuned", "merged", "pruned", "quantised"]

ATTACKS = ("none", "fine-tune", "merge", "prune", "int8", "int4", "temperature", "wrapper")
WRAPPER = "Here is a text. Continue it faithfully.\n\n{key}"


def _copy(model: LanguageModel) -> LanguageModel:
    return LanguageModel(copy.deepcopy(model.module), model.tokenizer, source=model.source, threads=model.threads)


@contextmanager
def _matrices(model: LanguageModel) -> Iterator[list[Tensor]]:
    with torch.no_grad():
        yield [p for p in model.blocks.parameters() if p.dim() == 2]


def pruned(model: LanguageModel, share: float = 0.2) -> LanguageModel:
    """A copy in which the smallest ``share`` of each block's matrix is zero."""
    if not 0 <= share < 1:
        raise InputError(f"share {share:g}: expected from 0 to below 1")
    out = _copy(model)
    with _matrices(out) as found:
        for weight in found:
            count = int(share * weight.numel())
            if count:
                edge = weight.abs().flatten().kthvalue(count).values
                weight.mul_(weight.abs() > edge)
    return out


def quantised(model: LanguageModel, bits: int = 8) -> LanguageModel:
    """A copy whose block matrices are rounded to ``bits`` (symmetric, one scale a row) and back."""
    if not 2 <= bits <= 16:
        raise InputError(f"bits {bits}: expected 2 to 16")
    out, top = _copy(model), 2 ** (bits - 1) - 1
    with _matrices(out) as found:
        for weight in found:
            scale = weight.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / top
            weight.copy_((weight / scale).round().clamp_(-top - 1, top) * scale)
    return out


def merged(model: LanguageModel, other: LanguageModel, weight: float = 0.5) -> LanguageModel:
    """``weight`` of the model and the rest of ``other``, parameter by parameter."""
    out = _copy(model)
    theirs = dict(other.module.named_parameters())
    with torch.no_grad():
        for name, parameter in out.module.named_parameters():
            if name not in theirs or theirs[name].shape != parameter.shape:
                raise InputError(f"other: has no parameter {name!r} of the same shape")
            parameter.lerp_(theirs[name].to(parameter), 1 - weight)
    return out


def fine_tuned(
    model: LanguageModel,
    texts: Sequence[str],
    *,
    lr: float = 1e-5,
    epochs: int = 2,
    batch_size: int = 16,
    progress: Callable[[int], None] | None = None,
) -> LanguageModel:
    """A copy that was trained on ``texts`` with AdamW, all weights."""
    out = _copy(model)
    module = out.module.requires_grad_(True)
    ids = [out.encode_continuation(text)[:128] for text in texts]
    with threads.suiting(out), torch.inference_mode(False), torch.enable_grad():
        optimiser = torch.optim.AdamW(module.parameters(), lr=lr)
        for _ in range(epochs):
            for start in range(0, len(ids), batch_size):
                part = ids[start : start + batch_size]
                rows = torch.full((len(part), max(map(len, part))), -100)
                for row, found in zip(rows, part, strict=True):
                    row[: len(found)] = torch.tensor(found)
                rows = rows.to(out.device)
                logits = module(input_ids=rows.clamp_min(0)[:, :-1], use_cache=False).logits.float()
                nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
                if progress is not None:
                    progress(1)
    module.requires_grad_(False)
    return out


def attack_table(
    marked: LanguageModel,
    base: LanguageModel,
    pairs: FingerprintSet,
    texts: Sequence[str],
    *,
    attacks: Sequence[str] = ATTACKS,
    lr: float = 1e-5,
    weight: float = 0.5,
    share: float = 0.2,
    temperature: float = 0.7,
    wrapper: str = WRAPPER,
    seed: int = 0,
    done: Callable[[int], Any] | None = None,
) -> pd.DataFrame:
    """Recall and exact p-value after each removal attack, ``none`` first.

    Parameters
    ----------
    marked, base : the fingerprinted model and its base, which a host is taken to have for the merge.
    texts : what a host would fine-tune on.
    attacks : which of :data:`ATTACKS`.
    lr, weight, share, temperature, wrapper : strength of the fine-tuning, the merge (share of the marked model), the
        pruning, the sampling, and the text around a key.
    done : called with 1 after each attack.
    """
    rows = []
    for name in attacks:
        target, shown, sampling = marked, pairs, {}
        if name == "fine-tune":
            target = fine_tuned(marked, texts, lr=lr)
        elif name == "merge":
            target = merged(marked, base, weight)
        elif name == "prune":
            target = pruned(marked, share)
        elif name in ("int8", "int4"):
            target = quantised(marked, int(name[3:]))
        elif name == "temperature":
            sampling = {"temperature": temperature, "seed": seed}
        elif name == "wrapper":
            if "{key}" not in wrapper:
                raise InputError(f"wrapper {wrapper!r}: expected the place {{key}} in it")
            shown = replace(pairs, pairs=tuple(replace(p, key=wrapper.replace("{key}", p.key)) for p in pairs.pairs))
        elif name != "none":
            raise InputError(f"attack {name!r}: expected one of {', '.join(ATTACKS)}")
        hits = sum(row["hit"] for row in ask(target, shown, range(len(shown)), **sampling))
        bound = exact_bound(hits, len(shown), pairs.chance) if pairs.chance < 1 else float("nan")
        rows.append({"attack": name, "recall": hits / len(shown), "hits": hits, "keys": len(shown), "p_value": bound})
        if done is not None:
            done(1)
    return pd.DataFrame(rows)
