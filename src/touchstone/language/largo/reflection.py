"""Stage 2, reflection: the model reads the latent as a message and says in words what it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache

from touchstone.errors import InputError
from touchstone.language import threads
from touchstone.language.largo.slot import embedded
from touchstone.language.largo.template import Frame

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["Words", "reflect"]


class Words:
    """Tokens that a suffix may be made of.

    Parameters
    ----------
    model : whose special tokens are always left out: one in a suffix would break the template rather than the guard.
    allowed : token ids to choose from; all if ``None``.
    """

    def __init__(self, model: LanguageModel, allowed: Sequence[int] | None = None) -> None:
        size = model.module.get_input_embeddings().weight.shape[0]
        tokenizer = model.tokenizer
        added = [int(i) for i, token in tokenizer.added_tokens_decoder.items() if token.special or "<" in str(token)]
        banned = torch.zeros(size, dtype=torch.bool)
        banned[sorted({i for i in (*tokenizer.all_special_ids, *model.stop_ids, *added) if i < size})] = True
        # Rows of the embedding beyond the tokenizer's words were never trained.
        banned[len(tokenizer) :] = True
        if allowed is not None:
            wrong = [i for i in allowed if not 0 <= i < size]
            if wrong or len(allowed) == 0:
                raise InputError(f"allowed: expected token ids from 0 to {size - 1}, at least one")
            others = torch.ones_like(banned)
            others[list(allowed)] = False
            banned |= others
        if bool(banned.all()):
            raise InputError("allowed: none of these tokens may stand in a suffix")
        self.banned = banned.to(model.device)

    @property
    def ids(self) -> Tensor:
        """Allowed token ids, int64 [W]."""
        return (~self.banned).nonzero().squeeze(-1)


def reflect(
    model: LanguageModel,
    frame: Frame,
    latent: Tensor,
    words: Words,
    *,
    length: int,
    samples: int,
    temperature: float,
    generator: torch.Generator,
    special: bool = False,
    cached: bool = True,
) -> list[list[int]]:
    """What the model says a latent [n, width] means: the greedy continuation and ``samples`` sampled ones.

    Parameters
    ----------
    frame : the reflective prompt; its end has begun the reply.
    words : what may be said.
    length : tokens of each.
    temperature : of the samples.
    cached : keep keys and values between steps; without it every step reads everything anew.
    """
    with torch.inference_mode(), threads.suiting(model):
        rows = 1 + samples
        given = _given(model, frame, latent, special)
        said = torch.zeros((rows, 0), dtype=torch.long, device=model.device)
        cache: Any = DynamicCache() if cached else None
        logits = _step(model, given, cache, 0)
        logits = logits.expand(rows, -1)
        if cached:
            cache.batch_repeat_interleave(rows)
        for t in range(length):
            tokens = _chosen(logits.float().masked_fill(words.banned, float("-inf")), temperature, generator)
            said = torch.cat([said, tokens[:, None]], dim=1)
            if t + 1 < length:
                new = model.module.get_input_embeddings()(said if not cached else said[:, -1:])
                whole = new if cached else torch.cat([given.expand(rows, -1, -1), new], dim=1)
                logits = _step(model, whole, cache, given.shape[1] + t if cached else 0)
    return [[int(i) for i in row] for row in said]


def _given(model: LanguageModel, frame: Frame, latent: Tensor, special: bool) -> Tensor:
    tokenizer = model.tokenizer
    before = tokenizer([frame.before], add_special_tokens=special)["input_ids"][0] if frame.before else []
    after = tokenizer([frame.after], add_special_tokens=False)["input_ids"][0] if frame.after else []
    pieces = [embedded(model, before), latent.float(), embedded(model, after)]
    weight = model.module.get_input_embeddings().weight
    return torch.cat(pieces)[None].to(weight.dtype)


def _step(model: LanguageModel, given: Tensor, cache: Any, start: int) -> Tensor:
    """Logits after the last of ``given`` [B, S, width], which begins at position ``start``."""
    extra: dict[str, Any] = {"logits_to_keep": 1} if model.keeps_logits else {}
    positions = torch.arange(start, start + given.shape[1], device=given.device).expand(given.shape[0], -1)
    if cache is not None:
        extra[model.cache_argument] = cache
    module: Any = model.module
    logits: Tensor = module(inputs_embeds=given, position_ids=positions, use_cache=cache is not None, **extra).logits
    return logits[:, -1]


def _chosen(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """The likeliest token for the first row, sampled ones for the others, int64 [B]."""
    best = logits.argmax(-1)
    if len(logits) == 1:
        return best
    if temperature == 0:
        return best
    drawn = torch.multinomial(torch.softmax(logits[1:].cpu() / temperature, -1), 1, generator=generator)
    return torch.cat([best[:1], drawn.squeeze(-1).to(best.device)])
