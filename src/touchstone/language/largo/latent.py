"""Stage 1, the latent: Adam on free embeddings in the slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from touchstone.errors import InputError
from touchstone.language import threads
from touchstone.language.gradients import frozen
from touchstone.language.largo.slot import Slot

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["Descent", "Start", "embedding_table", "start"]

Start = Literal["zeros", "mean_embedding", "random"]


@dataclass(frozen=True)
class Descent:
    """How a latent is optimised; the defaults are the official code's.

    Attributes
    ----------
    steps : Adam steps a round.
    lr : step size. A small model's embeddings need more (1e-2 on SmolLM2-135M, 0.1 on the organism).
    weight_decay : added to the gradient (L2), not decoupled.
    clip : largest norm of the gradient; under RMSNorm that at a latent of zeros is huge.
    radius : how far each position may go from where it starts; ``None`` for no ball. A ball around zero would bound
        nothing: a norm layer reads directions, and a latent of any length points anywhere.
    """

    steps: int = 20
    lr: float = 1e-3
    weight_decay: float = 0.01
    clip: float = 1.0
    radius: float | None = None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"steps {self.steps}: expected 1 or more")
        for name in ("lr", "clip"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} {getattr(self, name)}: expected a number above 0")
        if self.weight_decay < 0 or (self.radius is not None and not self.radius > 0):
            raise InputError("weight_decay, radius: expected no negative weight decay and a radius above 0")

    def run(self, slot: Slot, latent: Tensor) -> tuple[Tensor, list[float]]:
        """The latent after all steps, float32 [n, width], and the loss before each step and after the last.

        Raises
        ------
        InputError
            If no gradient reaches the inputs, as in models whose quantised layers have no backward pass.
        """
        return self.run_many([[slot]] * self.steps, latent)

    def run_many(self, batches: Sequence[Sequence[Slot]], latent: Tensor) -> tuple[Tensor, list[float]]:
        """One latent for several slots: a step for each batch, with the mean of its slots' gradients.

        Losses are means over a batch's slots, and after the last step over the last batch.
        """
        # Kept in float32 whatever the model's type: in bfloat16 a step of 1e-3 vanishes once an entry is above 0.25.
        free = latent.detach().clone().float().requires_grad_()
        middle = free.detach().clone()
        optimiser = torch.optim.Adam([free], lr=self.lr, weight_decay=self.weight_decay)
        losses: list[float] = []
        model = batches[0][0].model
        with torch.inference_mode(False), torch.enable_grad(), frozen(model.module), threads.suiting(model):
            for batch in batches:
                optimiser.zero_grad(set_to_none=True)
                losses.append(sum(_backward(slot, free, len(batch)) for slot in batch))
                nn.utils.clip_grad_norm_([free], self.clip)
                optimiser.step()
                if self.radius is not None:
                    _into_ball(free, middle, self.radius)
        with torch.no_grad(), threads.suiting(model):
            last = batches[-1]
            losses.append(sum(float(slot.losses(free.detach()[None]).mean()) for slot in last) / len(last))
        return free.detach(), losses


def _backward(slot: Slot, free: Tensor, share: int) -> float:
    loss = slot.losses(free[None]).mean() / share
    if not loss.requires_grad:
        raise InputError(f"model {slot.model.source}: no gradient reaches its inputs; load it without quantisation")
    loss.backward()
    return float(loss.detach())


def start(model: LanguageModel, kind: Start, length: int, generator: torch.Generator | None = None) -> Tensor:
    """A latent to begin with, float32 [length, width]: zeros, the mean of the token embeddings, or normal noise.

    Noise has the mean norm of the token embeddings at every position.
    """
    if kind == "zeros":
        return torch.zeros((length, model.width), device=model.device)
    if kind == "mean_embedding":
        return embedding_table(model).mean(dim=0).expand(length, -1).clone()
    if kind == "random":
        noise = torch.randn((length, model.width), generator=generator)
        norm = float(embedding_table(model).norm(dim=-1).mean())
        return (noise * norm / noise.norm(dim=-1, keepdim=True)).to(model.device)
    raise InputError(f"init {kind!r}: expected 'zeros', 'mean_embedding' or 'random'")


def embedding_table(model: LanguageModel) -> Tensor:
    """Embeddings of all tokens as the blocks are given them, float32 [V, width]."""
    embedding = model.module.get_input_embeddings()
    with torch.no_grad():
        ids = torch.arange(embedding.weight.shape[0], device=model.device)
        table: Tensor = embedding(ids)
    return table.float()


def _into_ball(free: Tensor, middle: Tensor, radius: float) -> None:
    with torch.no_grad():
        moved = free - middle
        free.copy_(middle + moved * (radius / moved.norm(dim=-1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0))
