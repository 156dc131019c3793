"""Folding: the rotate-by form written into the weights, for servers that run no hooks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from touchstone.errors import InputError
from touchstone.language.angular_steering.operators import basis_of
from touchstone.language.angular_steering.steer import angles_of, marked

if TYPE_CHECKING:
    from types import TracebackType

    from touchstone.language.angular_steering.plane import Layers, SteeringPlane
    from touchstone.language.model import LanguageModel

__all__ = ["Folded", "fold"]


class Folded:
    """A model with a rotation written into its weights, until :meth:`undo` or the end of the ``with`` block.

    To rotate by φ is linear, h' = (I + Δ) h with Δ = B (R_φ − I) Bᵀ of rank 2, and what is rotated, a norm's output
    after the norm's gain, is read by linear layers only: queries, keys and values, or gate and up projection. So W (I
    + Δ) in place of W gives the same logits as the hooks, up to rounding. Biases are added afterwards and stay. The
    set-angle form and gates are not linear and cannot be folded.

    While it is folded the model can be saved with ``model.module.save_pretrained``. What the weights were is kept
    beside them (as much memory as the layers that are changed) and restored bit for bit.

    Parameters
    ----------
    plane : the plane.
    model : the model whose weights are changed.
    degrees : angle to rotate by; 0 changes nothing.
    layers : see :meth:`SteeringPlane.points`.

    Raises
    ------
    InputError
        If the plane does not fit, the model is steered or folded already, its readers are unknown or hold no floating
        point weights, or the angle is not finite.
    """

    def __init__(self, plane: SteeringPlane, model: LanguageModel, degrees: float, *, layers: Layers = "all") -> None:
        plane.check_fits(model)
        unit = angles_of(degrees)
        if unit.dim() != 1:
            raise InputError("degrees: weights hold one angle, got several")
        weights = _readers(plane, model, layers)
        turn, basis = _turn(unit), basis_of(plane.b1, plane.b2)
        with ExitStack() as stack, torch.no_grad():
            stack.enter_context(marked(model))
            for weight in weights:
                stack.callback(_restore, weight, weight.detach().clone())
                weight.copy_(_turned(weight, basis, turn, model.layout.transposed))
            self._undo: ExitStack | None = stack.pop_all()

    def undo(self) -> None:
        """Restore the weights; does nothing if they are restored."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo.close()

    def __enter__(self) -> Folded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def fold(plane: SteeringPlane, model: LanguageModel, degrees: float, *, layers: Layers = "all") -> Folded:
    """Write the rotation into the weights of ``model``; see :class:`Folded`."""
    return Folded(plane, model, degrees, layers=layers)


def _restore(weight: nn.Parameter, original: Tensor) -> None:
    with torch.no_grad():
        weight.copy_(original)


def _readers(plane: SteeringPlane, model: LanguageModel, layers: Layers) -> list[nn.Parameter]:
    layout = model.layout
    found = []
    for site in plane.points(layers):
        paths = {"attention_input": layout.attention_readers, "mlp_input": layout.mlp_readers}.get(site.kind, ())
        if not paths:
            raise InputError(
                f"model {model.source}: the linear layers that read {site} are not known; it can't be folded"
            )
        for path in paths:
            weight = model.blocks[site.block].get_submodule(path).weight
            if not isinstance(weight, nn.Parameter) or not weight.is_floating_point():
                raise InputError(f"model {model.source}: {path} is quantised; fold into floating-point weights")
            found.append(weight)
    return found


def _turn(unit: Tensor) -> Tensor:
    """R_φ − I, float32 [2, 2]."""
    cos, sin = float(unit[0]), float(unit[1])
    return torch.tensor([[cos - 1.0, -sin], [sin, cos - 1.0]])


def _turned(weight: Tensor, basis: Tensor, turn: Tensor, transposed: bool) -> Tensor:
    """W (I + B (R − I) Bᵀ) for W [out, in]; the same for a layer that stores [in, out]."""
    wide, basis, turn = weight.float(), basis.to(weight.device), turn.to(weight.device)
    if transposed:
        return torch.addmm(wide, basis, turn.T @ (basis.T @ wide))
    return torch.addmm(wide, (wide @ basis) @ turn, basis.T)
