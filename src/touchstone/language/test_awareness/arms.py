"""Arms of a comparison: nothing, the edit, its controls and its rivals, all applied in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language.layout import Site
from touchstone.language.test_awareness.edit import GateEdit, gate_weights, random_like

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["CONTROLS", "Arm", "Control", "How", "ResidualSteering", "build_arms", "has_gates"]

How = Literal["edit", "residual"]
Control = Literal["random", "shuffled", "same_rows", "prompt"]
CONTROLS: tuple[Control, ...] = ("random", "shuffled", "same_rows", "prompt")


def has_gates(model: LanguageModel) -> bool:
    """Whether the model's MLPs have gate projections to edit."""
    return model.layout.gate is not None


@contextmanager
def ResidualSteering(
    model: LanguageModel,
    direction: np.ndarray | Tensor,
    layer: int,
    *,
    strength: float = 0.1,
    sign: int = 1,
    ablate: bool = False,
) -> Iterator[LanguageModel]:
    """Steer the residual stream at one layer while the block runs: for models without gates, and as the edit's rival.

    h ← h ± s ‖h‖ m̂ at every token, or with ``ablate`` h ← h − (h·m̂) m̂.

    Parameters
    ----------
    model : the model.
    direction : m, [d].
    layer : 0 for the embedding, l for what block l (counted from 1) leaves.
    strength : s, in units of each token's norm.
    sign : +1 to raise, −1 to lower.
    ablate : remove the direction instead.
    """
    if not 0 <= layer <= len(model.blocks):
        raise InputError(f"layer {layer}: expected 0 (embedding) to {len(model.blocks)}")
    if sign not in (1, -1):
        raise InputError(f"sign {sign}: expected 1 to raise or -1 to lower")
    found = torch.as_tensor(np.asarray(direction), dtype=torch.float32)
    if found.shape != (model.width,) or not float(found.norm()) > 0:
        raise InputError(f"direction: shape {tuple(found.shape)}; expected {model.width} numbers, not all zero")
    unit = (found / found.norm()).to(model.device)

    def edit(h: Tensor) -> Tensor:
        wide, here = h.float(), unit.to(h.device)
        if ablate:
            return (wide - (wide @ here).unsqueeze(-1) * here).to(h.dtype)
        return (wide + sign * strength * wide.norm(dim=-1, keepdim=True) * here).to(h.dtype)

    site = Site("embedding") if layer == 0 else Site("output", layer - 1)
    with model.edited({site: edit}):
        yield model


@dataclass(frozen=True)
class Arm:
    """One way to treat a model.

    Attributes
    ----------
    name : unique in a comparison.
    kind : ``base``, ``edit``, ``residual``, ``random``, ``shuffled``, ``same_rows``, ``mean_difference`` or ``prompt``.
    strength : signed strength; 0 for arms without.
    direction : [d], what is added.
    select : [d], by what rows are chosen, if by something else.
    how : weights or residual stream.
    layer : for the residual stream.
    k, rank : see :class:`~touchstone.language.test_awareness.edit.GateEdit`.
    system : system line.
    """

    name: str
    kind: str = "base"
    strength: float = 0.0
    direction: np.ndarray | None = None
    select: np.ndarray | None = None
    how: How = "edit"
    layer: int = 0
    k: int | None = None
    rank: Literal["global", "layer"] = "global"
    system: str | None = None

    @contextmanager
    def on(self, model: LanguageModel) -> Iterator[dict[str, Any]]:
        """Treat ``model`` while the block runs; yields what was done, in numbers."""
        if self.direction is None or self.strength == 0:
            yield {"alpha": 0.0, "rows": 0}
            return
        sign = 1 if self.strength > 0 else -1
        if self.how == "residual":
            with ResidualSteering(model, self.direction, self.layer, strength=abs(self.strength), sign=sign):
                yield {"alpha": self.strength, "rows": 0}
            return
        edit = GateEdit(
            model,
            self.direction,
            k=self.k,
            strength=abs(self.strength),
            sign=sign,
            rank=self.rank,
            select=self.select,
        )
        with edit:
            yield {"alpha": edit.alpha, "rows": edit.k, "layer_histogram": edit.layer_histogram.tolist()}


def build_arms(
    model: LanguageModel,
    direction: np.ndarray,
    *,
    strengths: Sequence[float] = (-1.0, 1.0),
    controls: Sequence[Control] = CONTROLS,
    shuffled: np.ndarray | None = None,
    lines: Sequence[str] = (),
    randoms: int = 5,
    how: How = "edit",
    layer: int = 0,
    k: int | None = None,
    rank: Literal["global", "layer"] = "global",
    seed: int = 0,
) -> list[Arm]:
    """The untouched model, the direction at each strength, and controls at the same strengths.

    Parameters
    ----------
    model : the model, to see what can be done to it.
    direction : the probe's.
    strengths : signed strengths.
    controls : ``"random"``: random directions of equal norm through the same choice of rows; ``"same_rows"``: the true
        direction's rows moved along those random directions; ``"shuffled"``: the direction of a probe of shuffled
        labels; ``"prompt"``: no edit, but a system line.
    shuffled : that probe's direction, for ``"shuffled"``.
    lines : system lines, for ``"prompt"``.
    randoms : number of random directions.
    how, layer, k, rank : see :class:`Arm`.
    seed : of the random directions.

    Raises
    ------
    InputError
        If a control lacks what it needs, or the model has no gates to edit.
    """
    unknown = set(controls) - set(CONTROLS)
    if unknown:
        raise InputError(f"control {sorted(unknown)[0]!r}: expected some of {', '.join(CONTROLS)}")
    if not strengths or 0 in strengths:
        raise InputError("strengths: expected at least one, none of them 0 (the untouched model is an arm already)")
    if how == "edit":
        gate_weights(model)
    shared: dict[str, Any] = {"how": how, "layer": layer, "k": k, "rank": rank}
    arms = [Arm("base")]

    def add(name: str, kind: str, vector: np.ndarray, select: np.ndarray | None = None) -> None:
        for strength in strengths:
            arms.append(Arm(f"{name} {strength:+g}", kind, float(strength), vector, select, **shared))

    add("awareness", "edit" if how == "edit" else "residual", direction)
    for i in range(randoms):
        vector = random_like(direction, seed * 1000 + i)
        if "random" in controls:
            add(f"random {i + 1}", "random", vector)
        if "same_rows" in controls and how == "edit":
            add(f"same rows {i + 1}", "same_rows", vector, direction)
    if "shuffled" in controls:
        if shuffled is None:
            raise InputError("shuffled: the control needs the direction of a probe of shuffled labels")
        add("shuffled labels", "shuffled", shuffled)
    if "prompt" in controls:
        if not lines:
            raise InputError("lines: the prompt control needs at least one system line")
        arms += [Arm(f"prompt: {line}", "prompt", system=line) for line in lines]
    return arms
