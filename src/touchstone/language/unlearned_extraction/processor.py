"""Reversed guidance for ``transformers``' own ``generate``: the old model generates, the new one is read beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language.model import LanguageModel
from touchstone.language.unlearned_extraction.extractor import guided

__all__ = ["ReversedGuidanceLogitsProcessor"]


class ReversedGuidanceLogitsProcessor:
    """Turns the old model's logits into guided scores; for ``pre.generate(logits_processor=[…])``.

    Parameters
    ----------
    post : the model after unlearning.
    w, gamma : see :class:`~touchstone.language.unlearned_extraction.GuidedExtractor`.
    attention_mask : of the prompts, int64 [B, T]; needed where they are padded, for ``generate`` does not pass it on.
        With several beams, of each beam.

    Notes
    -----
    The new model keeps its own key/value cache while the sequences grow by a token at a time; whenever they are others
    (a new call, beams that change places) it reads them anew.
    """

    def __init__(
        self, post: LanguageModel, w: float = 2.0, gamma: float = 1e-5, *, attention_mask: Tensor | None = None
    ) -> None:
        if not w >= 0 or not 0 <= gamma <= 1:
            raise InputError(f"w {w}, gamma {gamma}: expected 0 or more, and a number from 0 to 1")
        self.post, self.w, self.gamma, self.attention_mask = post, w, gamma, attention_mask
        self._ids: Tensor | None = None
        self._cache: Any = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Guided scores [B, V] for sequences [B, T] whose next-token logits under the old model are ``scores``."""
        grown = (
            self._ids is not None
            and input_ids.shape == (self._ids.shape[0], self._ids.shape[1] + 1)
            and bool((input_ids[:, :-1] == self._ids).all())
        )
        if not grown:
            from transformers import DynamicCache

            self._cache = DynamicCache(config=self.post.module.config)
        fresh = input_ids[:, -1:] if grown else input_ids
        mask = self._mask(input_ids)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -fresh.shape[1] :]
        extra = {self.post.cache_argument: self._cache, "use_cache": True}
        with torch.inference_mode():
            output = self.post.module(input_ids=fresh, attention_mask=mask, position_ids=positions, **extra)
        self._ids = input_ids
        if output.logits.shape[-1] != scores.shape[-1]:
            raise InputError(f"post: {output.logits.shape[-1]} logits, the generating model {scores.shape[-1]}")
        return guided(scores, output.logits[:, -1].to(scores.device), self.w, self.gamma)

    def _mask(self, ids: Tensor) -> Tensor:
        given = self.attention_mask
        if given is None:
            return torch.ones_like(ids)
        if len(given) != len(ids) or given.shape[1] > ids.shape[1]:
            raise InputError(f"attention_mask: of {tuple(given.shape)}, the sequences are {tuple(ids.shape)}")
        return torch.cat([given.to(ids), ids.new_ones((len(ids), ids.shape[1] - given.shape[1]))], dim=1)
