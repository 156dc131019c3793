"""One behaviour's loss, −(1/m) Σ log p(target), of a latent in the slot or of a text there.

The tokens before the slot do not depend on the latent: they are read once, and the gradient runs through slot, tail and
target only. The head is applied at the target's m positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache

from touchstone.errors import InputError
from touchstone.language import scoring, threads
from touchstone.language.largo.template import Frame

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["Slot", "embedded"]


def embedded(model: LanguageModel, ids: Sequence[int]) -> Tensor:
    """What the model's blocks are given for token ids, [tokens, width], float32 or what is wider.

    Some families scale embeddings inside the embedding module and some after it; its output is what ``inputs_embeds``
    stands for in both.
    """
    with torch.no_grad():
        found: Tensor = model.module.get_input_embeddings()(torch.tensor(list(ids), dtype=torch.long).to(model.device))
    return _wide(found)


class Slot:
    """A prompt with a slot, and the reply whose probability is wanted.

    Parameters
    ----------
    model : frozen.
    frame : text on both sides of the slot.
    target : opening words of the reply.
    special : whether the tokenizer adds special tokens, see :class:`Template`.
    share_prefix : read the tokens before the slot once; ``None`` does so where the model allows it.

    Raises
    ------
    InputError
        If the target has no tokens.
    """

    def __init__(
        self,
        model: LanguageModel,
        frame: Frame,
        target: str,
        *,
        special: bool = False,
        share_prefix: bool | None = None,
    ) -> None:
        self.model, self.frame, self._special = model, frame, special
        self.target_ids = model.encode_continuation(target) if target.strip() else []
        if not self.target_ids:
            raise InputError(f"target {target!r}: no tokens; expected the opening words of a reply")
        self.before = tuple(self._ids(frame.before, special))
        self.after = tuple(self._ids(frame.after, special=False))
        shares = model.shares_prefixes if share_prefix is None else share_prefix
        self.shares_prefix = bool(shares and self.before)
        self._kept: list[tuple[Tensor, Tensor]] | None = None
        self._tail = embedded(model, [*self.after, *self.target_ids[:-1]]).to(self._dtype)
        self._head = embedded(model, self.before).to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return self.model.module.get_input_embeddings().weight.dtype

    def _ids(self, text: str, special: bool) -> list[int]:
        found = self.model.tokenizer([text], add_special_tokens=special)["input_ids"][0] if text else []
        return [int(i) for i in found]

    def look_at_length(self, slot: int) -> None:
        """Raise :class:`InputError` if prompt, slot and target are longer than the model's context."""
        longest = getattr(self.model.module.config, "max_position_embeddings", None)
        whole = len(self.before) + slot + len(self.after) + len(self.target_ids)
        if longest is not None and whole > longest:
            raise InputError(
                f"suffix_len {slot}: prompt, suffix and target are {whole} tokens; the model reads {longest}"
            )

    # Texts

    def prompt_ids(self, text: str) -> list[int]:
        """Token ids of the whole prompt with a text in the slot, as the model would be given it."""
        return self._ids(self.frame.filled(text), self._special)

    def ids(self, text: str) -> list[int]:
        """Token ids of a text in the slot: those between head and tail of the whole prompt.

        Where the tokenizer merges across an end of the slot, those of the text by itself.
        """
        whole = self.prompt_ids(text)
        start, end = len(self.before), len(whole) - len(self.after)
        if tuple(whole[:start]) == self.before and tuple(whole[end:]) == self.after and start <= end:
            return whole[start:end]
        return self._ids(f"{self.frame.joint}{text}", special=False)

    def text_losses(self, texts: Sequence[str], *, batch_size: int = 64) -> list[float]:
        """Loss of each text as the prompt would be typed, in nats a target token."""
        return self.ids_losses([self.prompt_ids(text) for text in texts], batch_size=batch_size)

    def ids_losses(self, prompts: Sequence[Sequence[int]], *, batch_size: int = 64) -> list[float]:
        """Loss after each whole prompt given as token ids, in nats a target token."""
        if not prompts:
            return []
        with torch.inference_mode(), threads.suiting(self.model):
            found = scoring.score(self.model, prompts, [[self.target_ids] for _ in prompts], batch_size=batch_size).mean
        return [-float(value) for value in found[:, 0]]

    # Latents

    def losses(self, latents: Tensor) -> Tensor:
        """Loss of latents [B, n, width] in the slot, [B], differentiable in them, in nats a target token."""
        rows = latents.shape[0]
        tail = self._tail.expand(rows, -1, -1)
        given = torch.cat([latents.to(self._dtype), tail], dim=1)
        module: Any = self.model.module
        m = len(self.target_ids)
        extra: dict[str, Any] = {"logits_to_keep": m} if self.model.keeps_logits else {}
        if self.shares_prefix:
            cache = DynamicCache()
            for layer, (keys, values) in enumerate(self._prefix()):
                cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), layer)
            extra |= {self.model.cache_argument: cache, "use_cache": True}
            start = len(self.before)
            extra["position_ids"] = torch.arange(start, start + given.shape[1], device=given.device).expand(rows, -1)
        else:
            given = torch.cat([self._head.expand(rows, -1, -1), given], dim=1)
            extra["use_cache"] = False
        logits = _wide(module(inputs_embeds=given, **extra).logits[:, -m:])
        wanted = torch.tensor(self.target_ids, device=logits.device).expand(rows, -1)
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none").mean(dim=1)

    def _prefix(self) -> list[tuple[Tensor, Tensor]]:
        if self._kept is None:
            cache, module = DynamicCache(), self.model.module
            extra: dict[str, Any] = {self.model.cache_argument: cache, "use_cache": True}
            if self.model.keeps_logits:
                extra["logits_to_keep"] = 1
            with torch.no_grad():
                module(inputs_embeds=self._head[None], **extra)
            self._kept = [(layer.keys.detach(), layer.values.detach()) for layer in cache.layers]
        return self._kept


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
