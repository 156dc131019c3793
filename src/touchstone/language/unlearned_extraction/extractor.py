"""Reversed model guidance: decode what a model knew before unlearning and no longer knows after it (arXiv 2505.24379).

If the old model is the new one fine-tuned on the deleted text, p_old ∝ p_new^(1-λ) q^λ, then the deleted text's
distribution is log q = (1 - w) log p_new + w log p_old with w = 1/λ.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language.batching import batches
from touchstone.language.decoding import Sampling
from touchstone.language.model import LanguageModel
from touchstone.language.unlearned_extraction.sources import Function, Local, Reading, Source

__all__ = ["Extraction", "GuidedExtractor", "guided"]


@dataclass(frozen=True)
class Extraction:
    """One continuation.

    Attributes
    ----------
    text : its text, without the token that ends it.
    ids : its tokens.
    gaps : log p_old - log p_new of each token, in nats; positive where the old model prefers it.
    ended : whether it came to its end before the limit of tokens.
    """

    text: str
    ids: list[int]
    gaps: list[float]
    ended: bool


def guided(pre: Tensor, post: Tensor, w: float, gamma: float) -> Tensor:
    """Scores of next tokens, float32 [B, V]: (1 - w)·post + w·pre, and -inf outside the filter.

    Both may be logits or log-probabilities: a constant a row changes neither the filter nor what softmax makes of the
    scores. The filter keeps v with p_old(v) ≥ γ·max p_old; it is Li et al.'s plausibility constraint, arXiv 2210.15097.

    Where the old model is not known at all (a row of -inf), the scores are those of the new one.
    """
    pre, post = pre.float(), post.float()
    top = pre.amax(-1, keepdim=True)
    known = torch.isfinite(top)
    scores = torch.where(torch.isfinite(pre), (1 - w) * post + w * pre, -torch.inf)
    if gamma > 0:
        scores = scores.masked_fill(pre < top + math.log(gamma), -torch.inf)
    return torch.where(known, scores, post)


class GuidedExtractor:
    """Continue prefixes of deleted text by the old model guided away from the new one.

    Parameters
    ----------
    pre, post : the model before and after unlearning: models with one vocabulary, or functions from ids and mask
        (int64 [B, T], padded on the left) to logits, or sources.
    tokenizer : a model whose tokenizer reads prefixes; needed if neither ``pre`` nor ``post`` is a model.
    w : guidance, at least 0: 0 is the new model, 1 the old one. The paper takes 2 (Phi-1.5, 3 epochs), 1.4 (Llama 2,
        2 epochs) and 1.2 if unlearning was approximate; the more the old model memorised, the smaller.
    gamma : of the filter; 1e-5 in the paper. 1 is the old model's greedy decoding, 0 no filter.

    Raises
    ------
    InputError
        If the vocabularies differ, or ``w`` or ``gamma`` is out of range.
    """

    def __init__(
        self,
        pre: LanguageModel | Source | Callable[[Tensor, Tensor], Tensor],
        post: LanguageModel | Source | Callable[[Tensor, Tensor], Tensor],
        tokenizer: LanguageModel | None = None,
        *,
        w: float = 2.0,
        gamma: float = 1e-5,
    ) -> None:
        if not w >= 0:
            raise InputError(f"w {w}: expected 0 or more")
        if not 0 <= gamma <= 1:
            raise InputError(f"gamma {gamma}: expected a number from 0 to 1")
        reader = tokenizer or next((one for one in (post, pre) if isinstance(one, LanguageModel)), None)
        if reader is None:
            raise InputError("tokenizer: expected a LanguageModel, for neither pre nor post is one")
        self.reader, self.w, self.gamma = reader, float(w), float(gamma)
        self.pre, self.post = (_source(one, reader) for one in (pre, post))
        _same_vocabulary(pre, post, self.pre, self.post)

    def at(self, *, w: float | None = None, gamma: float | None = None) -> GuidedExtractor:
        """The same with another guidance or filter."""
        return GuidedExtractor(
            self.pre, self.post, self.reader,
            w=self.w if w is None else w, gamma=self.gamma if gamma is None else gamma,
        )  # fmt: skip

    def generate(
        self,
        prefixes: Sequence[str] | Sequence[Sequence[int]],
        *,
        max_new_tokens: int = 64,
        batch_size: int = 16,
        do_sample: bool = False,
        temperature: float = 1.0,
        seed: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> list[Extraction]:
        """Continue every prefix, at most ``max_new_tokens`` tokens; the same whatever the batch size.

        Parameters
        ----------
        do_sample : sample from softmax(scores / temperature) over what the filter leaves, instead of the best token.
        progress : called with the number of prefixes just finished.

        Raises
        ------
        InputError
            If a prefix is empty or longer than the context allows, or a model gives logits that are not numbers.
        """
        if max_new_tokens < 1 or batch_size < 1:
            raise InputError("max_new_tokens, batch_size: expected at least 1")
        prompts = self._prompts(prefixes, max_new_tokens)
        sampling = Sampling(temperature if do_sample else 0.0)
        noise = torch.rand((len(prompts), max_new_tokens), generator=torch.Generator().manual_seed(seed))
        found: list[Extraction | None] = [None] * len(prompts)
        with torch.inference_mode():
            for rows in batches([len(ids) for ids in prompts], batch_size):
                for i, one in zip(rows, self._decode([prompts[i] for i in rows], sampling, noise[rows]), strict=True):
                    found[i] = replace(one, text=self.reader.decode(one.ids))
                if progress is not None:
                    progress(len(rows))
        return [one for one in found if one is not None]

    def _decode(self, prompts: list[list[int]], sampling: Sampling, noise: Tensor) -> list[Extraction]:
        made = [Extraction("", [], [], False) for _ in prompts]
        device = self.reader.device
        stops = torch.tensor(sorted(self.reader.stop_ids), device=device)
        active = torch.arange(len(prompts), device=device)
        old, new = self.pre.read(prompts), self.post.read(prompts)
        for t in range(noise.shape[1]):
            _look_at(old, new)
            scores = guided(old.logits, new.logits, self.w, self.gamma)
            tokens = sampling.choose(scores, noise[active.cpu(), t].to(scores.device)).to(device)
            gaps = _gaps(old.logits, new.logits, tokens).tolist()
            going = ~torch.isin(tokens, stops)
            for i, token, gap, on in zip(active.tolist(), tokens.tolist(), gaps, going.tolist(), strict=True):
                if on:
                    made[i].ids.append(token)
                    made[i].gaps.append(gap)
                else:
                    made[i] = replace(made[i], ended=True)
            if t + 1 == noise.shape[1] or not bool(going.any()):
                break
            if not bool(going.all()):
                # Rows that are done leave the batch: the official loop carries them on and scores what they write.
                keep = going.nonzero().squeeze(-1)
                active, tokens = active[keep], tokens[keep]
                old.select(keep)
                new.select(keep)
            old.advance(tokens)
            new.advance(tokens)
        return made

    def _prompts(self, prefixes: Sequence[str] | Sequence[Sequence[int]], new: int) -> list[list[int]]:
        if isinstance(prefixes, str):
            raise InputError("prefixes: expected a list of prefixes, got a single string")
        found: list[list[int]] = []
        prefix: Any
        for i, prefix in enumerate(prefixes):
            if not len(prefix):
                raise InputError(f"prefix {i}: empty; expected at least one token")
            if isinstance(prefix, str):
                found.append(self.reader.encode([prefix], chat=False)[0])
            else:
                found.append([int(token) for token in prefix])
        longest = getattr(self.reader.module.config, "max_position_embeddings", None)
        for i, ids in enumerate(found):
            if longest is not None and len(ids) + new > longest:
                raise InputError(f"prefix {i}: {len(ids)} tokens and {new} new ones do not fit a context of {longest}")
        return found


def _source(one: LanguageModel | Source | Callable[[Tensor, Tensor], Tensor], reader: LanguageModel) -> Source:
    if isinstance(one, LanguageModel):
        return Local(one)
    if hasattr(one, "read"):
        return one  # type: ignore[return-value]
    if callable(one):
        return Function(one, reader.pad_id)
    raise InputError(f"pre, post: expected models, sources or functions, got {type(one).__name__}")


def _same_vocabulary(pre: object, post: object, a: Source, b: Source) -> None:
    if isinstance(pre, LanguageModel) and isinstance(post, LanguageModel):
        first, second = (
            hashlib.sha256(json.dumps(one.tokenizer.get_vocab(), sort_keys=True).encode()).hexdigest()
            for one in (pre, post)
        )
        if first != second:
            raise InputError("pre, post: their tokenizers differ; expected two checkpoints of one model")
    if a.vocabulary and b.vocabulary and a.vocabulary != b.vocabulary:
        raise InputError(f"pre, post: {a.vocabulary} and {b.vocabulary} logits; expected one vocabulary")


def _look_at(old: Reading, new: Reading) -> None:
    if old.logits.shape != new.logits.shape:
        raise InputError(
            f"pre, post: {old.logits.shape[-1]} and {new.logits.shape[-1]} logits; expected one vocabulary"
        )
    for name, reading in (("pre", old), ("post", new)):
        if bool(reading.logits.isnan().any()):
            raise InputError(f"{name}: gives logits that are not numbers")
    if bool(new.logits.isinf().any()):
        raise InputError("post: leaves out logits; only those of the old model may be released in part")


def _gaps(old: Tensor, new: Tensor, tokens: Tensor) -> Tensor:
    """log p_old - log p_new of the chosen tokens; 0 where the old model is not known."""
    a, b = ((one.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - one.logsumexp(-1)) for one in (old, new))
    return torch.nan_to_num(a - b, nan=0.0, posinf=0.0, neginf=0.0)
