"""What a search must beat at the same number of target calls: the best of many random mutants, and gradients."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from touchstone.language.evorefuse.fitness import Scorer
from touchstone.language.evorefuse.judging import Panel
from touchstone.language.evorefuse.mutants import Mutator

if TYPE_CHECKING:
    from torch import Tensor

    from touchstone.language.model import LanguageModel

__all__ = ["best_of_n", "gradient_search", "noise"]

_TRIES = 40


def best_of_n(
    seeds: Sequence[str],
    scorer: Scorer,
    n: int,
    *,
    mutators: Sequence[Mutator],
    panel: Panel,
    depth: int = 6,
    seed: int = 0,
) -> list[str]:
    """For every seed the fittest of itself and ``n`` − 1 harmless random mutants.

    Every mutant is the end of a chain of 1 to ``depth`` random mutators, so that it can be as far from its seed as what
    a search ends at.
    """
    groups = []
    for text, stream in zip(seeds, np.random.SeedSequence(seed).spawn(len(seeds)), strict=True):
        rng = np.random.default_rng(stream)
        found = {text: None}
        for _ in range(_TRIES):
            chains = [_chain(text, mutators, int(rng.integers(1, depth + 1)), rng) for _ in range(n - len(found))]
            unique = [new for new in dict.fromkeys(chains) if new not in found]
            safe = panel.harmless(unique, [""] * len(unique))
            found |= dict.fromkeys(new for new, ok in zip(unique, safe, strict=True) if ok)
            if len(found) >= n:
                break
        groups.append(list(found)[:n])
    values = scorer.score(groups, 1)
    return [group[int(np.argmax(mine))] for group, mine in zip(groups, values, strict=True)]


def _chain(text: str, mutators: Sequence[Mutator], length: int, rng: np.random.Generator) -> str:
    for _ in range(length):
        [mutant] = mutators[int(rng.integers(len(mutators)))]([text], [rng])
        text = text if mutant is None else mutant.text
    return text


def noise(seed: int, texts: Sequence[str]) -> list[float]:
    """A fitness that knows nothing: a search with it is random mutation without selection."""
    digests = (hashlib.blake2b(f"{seed}\0{text}".encode(), digest_size=8).digest() for text in texts)
    return [int.from_bytes(digest, "big") / 2**64 for digest in digests]


def gradient_search(
    model: LanguageModel,
    prompts: Sequence[str],
    opener: str,
    *,
    words: Sequence[str],
    fixed: Sequence[Sequence[int]],
    rounds: int = 7,
    candidates: int = 8,
    keep: int = 64,
    seed: int = 0,
) -> list[str]:
    """Greedy coordinate gradient on the free words of prompts (GCG, arXiv 2307.15043), for a model of one token a word.

    Every round scores ``candidates`` exchanges of one word, drawn among the ``keep`` that the gradient of
    −log p(opener | prompt) favours, and takes the best if it is better. All prompts go through the rounds together.

    Parameters
    ----------
    words : what may stand in a free place.
    fixed : for each prompt, the places, counted in tokens, that may not change.
    """
    import torch

    from touchstone.language.batching import pad_left
    from touchstone.language.gradients import frozen

    rng = np.random.default_rng(seed)
    [target] = model.encode_continuation(opener)
    allowed = torch.tensor([model.encode_continuation(word)[0] for word in words])
    table = model.module.get_input_embeddings().weight.detach()
    encoded = model.encode(prompts)
    ids, mask = pad_left(encoded, model.pad_id, model.device)
    width = ids.shape[1]
    offsets = [width - len(row) for row in encoded]
    free = torch.zeros_like(mask, dtype=torch.bool)
    for row, (start, still) in enumerate(zip(offsets, fixed, strict=True)):
        free[row, [i for i in range(start, width) if i - start not in set(still)]] = True
    best = _opener_loss(model, ids, mask, target)
    for _ in range(rounds):
        embedded = table[ids].clone().requires_grad_()
        with torch.enable_grad(), frozen(model.module):
            logits = model.module(inputs_embeds=embedded, **_masked(mask), use_cache=False).logits[:, -1]
            loss = torch.nn.functional.cross_entropy(logits, torch.full((len(ids),), target), reduction="sum")
            [gradient] = torch.autograd.grad(loss, embedded)
        gain = -(gradient @ table[allowed].T).masked_fill(~free.unsqueeze(-1), -torch.inf)
        order = gain.flatten(1).argsort(dim=1, descending=True)[:, :keep]
        drawn = torch.stack([row[rng.permutation(keep)[:candidates]] for row in order])
        new = ids.repeat_interleave(candidates, dim=0)
        places, picked = (drawn // len(allowed)).flatten(), (drawn % len(allowed)).flatten()
        new[torch.arange(len(new)), places] = allowed[picked]
        losses = _opener_loss(model, new, mask.repeat_interleave(candidates, dim=0), target).view(len(ids), candidates)
        least, which = losses.min(dim=1)
        better = least < best
        ids = torch.where(
            better.unsqueeze(1), new.view(len(ids), candidates, width)[torch.arange(len(ids)), which], ids
        )
        best = torch.minimum(best, least)
    rows = [row[start:].tolist() for row, start in zip(ids, offsets, strict=True)]
    return [" ".join(model.tokenizer.convert_ids_to_tokens(row)) for row in rows]


def _masked(mask: Tensor) -> dict[str, Tensor]:
    return {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}


def _opener_loss(model: LanguageModel, ids: Tensor, mask: Tensor, target: int) -> Tensor:
    import torch

    with torch.inference_mode():
        logits = model.module(input_ids=ids, **_masked(mask), use_cache=False).logits[:, -1]
        return -torch.log_softmax(logits.float(), -1)[:, target].clone()
