"""Which tokens set off a refusal: gradients at the input embeddings, and information flow through attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from touchstone.errors import InputError
from touchstone.language import threads
from touchstone.language.gradients import frozen

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["Attribution", "attribution", "gradient_scores"]


@dataclass(frozen=True)
class Attribution:
    """How much each token of a prompt moves the first token of a refusal.

    Attributes
    ----------
    tokens : texts of the tokens of the whole rendered prompt.
    scores : gradient norm or information flow of each, divided by the largest one of the prompt itself, float64
        [tokens].
    of_prompt : which tokens belong to the prompt, rather than to the chat template around it, bool [tokens].
    loss : −log p(first token of the opener | prompt), in nats.
    layer : block of the information flow; ``None`` for gradients.
    """

    tokens: list[str]
    scores: np.ndarray
    of_prompt: np.ndarray
    loss: float
    layer: int | None = None

    def share(self, chosen: Sequence[bool] | np.ndarray) -> float:
        """Share of the prompt's total score that lies on the chosen tokens, bool [tokens]."""
        mine = np.asarray(chosen, dtype=bool) & self.of_prompt
        return float(self.scores[mine].sum() / max(self.scores[self.of_prompt].sum(), 1e-300))

    def table(self) -> pd.DataFrame:
        """One row a token of the prompt, in its order: ``token`` and ``score``."""
        here = np.flatnonzero(self.of_prompt)
        return pd.DataFrame({"token": [self.tokens[i] for i in here], "score": self.scores[here]})

    def words(self) -> pd.DataFrame:
        """One row a word between spaces, highest first: ``word`` and the largest ``score`` of its tokens."""
        rows: list[list[Any]] = []
        for token, score in zip(*(self.table()[c] for c in ("token", "score")), strict=True):
            if rows and not token[:1].isspace():
                rows[-1] = [rows[-1][0] + token, max(rows[-1][1], score)]
            else:
                rows.append([token, score])
        frame = pd.DataFrame([(word.strip(), score) for word, score in rows], columns=["word", "score"])
        return frame[frame["word"] != ""].sort_values("score", ascending=False, kind="stable", ignore_index=True)


def attribution(
    model: LanguageModel,
    prompt: str,
    opener: str = "I'm sorry",
    layer: int | None = None,
    *,
    system: str | None = None,
) -> Attribution:
    """Score the tokens of a prompt by their influence on −log p(first token of ``opener`` | prompt).

    Parameters
    ----------
    prompt : a user's message.
    opener : how a refusal begins.
    layer : ``None`` gives ‖∂loss/∂e_i‖₂ at the input embeddings; a block gives information flow there,
        |A ⊙ ∂loss/∂A| averaged over heads, its mean over the queries that see a token. The paper looks at the first 15.

    Raises
    ------
    InputError
        If the opener has no tokens, the model has no such block, or does not give away its attention.
    """
    [ids] = model.encode([prompt], system=system)
    first = model.encode_continuation(opener)[:1]
    if not first:
        raise InputError(f"opener {opener!r}: no tokens; expected at least one")
    if layer is not None and not 0 <= layer < len(model.blocks):
        raise InputError(f"layer {layer}: the model has blocks 0 to {len(model.blocks) - 1}")
    row = torch.tensor([ids], device=model.device)
    with threads.suiting(model):
        if layer is None:
            raw, loss = gradient_scores(model.module, row, torch.tensor(first, device=model.device))
            scores = raw[0]
        else:
            scores, loss = _flow(model.module, row, first[0], layer)
    tokens, mine = _located(model, ids, prompt, system)
    values = scores.double().cpu().numpy()
    most = values[mine].max()
    return Attribution(tokens, values / most if most > 0 else values, mine, float(loss.sum()), layer)


def gradient_scores(
    module: nn.Module, ids: Tensor, target: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """‖∂loss/∂e_i‖₂ [B, T] and loss −log p(target | ids) [B] for prompts ``ids`` [B, T] that end at their last column.

    Rows do not influence each other. ``target`` [B] holds a token a row.
    """
    embedded = module.get_input_embeddings()(ids).detach().requires_grad_()  # type: ignore[operator]
    extra: dict[str, Any] = (
        {} if mask is None else {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    )
    with torch.enable_grad(), frozen(module):
        logits = module(inputs_embeds=embedded, use_cache=False, **extra).logits[:, -1]
        loss = torch.nn.functional.cross_entropy(logits.float(), target, reduction="none")
        [gradient] = torch.autograd.grad(loss.sum(), embedded)
    return gradient.float().norm(dim=-1), loss.detach()


def _flow(module: Any, ids: Tensor, target: int, layer: int) -> tuple[Tensor, Tensor]:
    """Information flow into every token at a block, [T], and the loss."""
    before = getattr(module.config, "_attn_implementation", None)
    if before != "eager":
        # Only the eager form makes the attention matrix that its gradient is taken of.
        module.set_attn_implementation("eager")
    try:
        embedded = module.get_input_embeddings()(ids).detach().requires_grad_()
        with torch.enable_grad(), frozen(module):
            output = module(inputs_embeds=embedded, use_cache=False, output_attentions=True)
            if not output.attentions or output.attentions[layer] is None:
                raise InputError(f"model {type(module).__name__}: gives no attention matrices")
            weights = output.attentions[layer]
            loss = torch.nn.functional.cross_entropy(
                output.logits[:, -1].float(), torch.tensor([target], device=ids.device)
            )
            [gradient] = torch.autograd.grad(loss, weights)
    finally:
        if before not in (None, "eager"):
            module.set_attn_implementation(before)
    flow = (weights.detach() * gradient).abs().mean(dim=1)[0]
    # A token is seen by itself and by those after it: the mean is over these.
    seen_by = torch.arange(flow.shape[0], 0, -1, device=flow.device)
    return flow.sum(dim=0) / seen_by, loss.detach().reshape(1)


def _located(model: LanguageModel, ids: list[int], prompt: str, system: str | None) -> tuple[list[str], np.ndarray]:
    """Text of each token, and whether it belongs to the prompt."""
    text = model.render(prompt, system=system)
    special = getattr(model.tokenizer, "chat_template", None) is None
    encoded = model.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
    start = text.rfind(prompt.strip())
    end = start + len(prompt.strip())
    tokens, mine = [], []
    for a, b in encoded["offset_mapping"]:
        tokens.append(text[a:b])
        mine.append(b > a and b > start and a < end)
    found = np.array(mine, dtype=bool)
    if len(found) != len(ids) or not found.any():
        return [model.tokenizer.decode([i]) for i in ids], np.ones(len(ids), dtype=bool)
    return tokens, found
