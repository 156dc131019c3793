"""The steering operators: what one rotation does to an activation, as pure functions of tensors.

With an orthonormal pair b1, b2, an activation h has the coordinates c1 = h·b1 and c2 = h·b2 in the plane and the length
r = √(c1² + c2²) there. Turning it changes these two coordinates and nothing else, so that ‖h‖ stays what it was:

- *set angle* (arXiv 2510.26243): h' = h + (r cos θ − c1) b1 + (r sin θ − c2) b2. θ is a target, the same for every h.
- *rotate by* (arXiv 2601.19375): h' = h + ((cos φ − 1) c1 − sin φ c2) b1 + (sin φ c1 + (cos φ − 1) c2) b2. Linear in
h; φ = 0
  is the identity.

Both need two dot products and two scaled additions, about 8 d operations, where a d × d projection needs d².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from touchstone.errors import InputError

__all__ = ["Form", "Gate", "Graded", "Turn", "basis_of", "rotate", "set_angle"]

Form = Literal["set", "rotate"]


@dataclass(frozen=True)
class Graded:
    """A soft gate: an activation is turned by the share σ((c1 − tau) / scale) of the way.

    Parameters
    ----------
    tau : coordinate along the feature at which half of the turn is made, in activation units; the class projections of
        :attr:`SteeringPlane.diagnostics` show where the two behaviours lie.
    scale : width of the transition, in activation units; above 0. Towards 0 the gate becomes hard.
    """

    tau: float
    scale: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.tau):
            raise InputError(f"tau {self.tau}: expected a finite number")
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"scale {self.scale}: expected a finite number above 0")


Gate = Literal["adaptive"] | Graded | None
"""Which activations are turned: all (``None``), those with c1 > 0 (``"adaptive"``), or each by a share
(:class:`Graded`).
"""


def basis_of(b1: Tensor, b2: Tensor) -> Tensor:
    """The plane as a float32 matrix [d, 2], to be multiplied from the right."""
    return torch.stack([b1.float(), b2.float()], dim=1)


def set_angle(
    h: Tensor, b1: Tensor, b2: Tensor, degrees: float | Sequence[float] | Tensor, gate: Gate = None
) -> Tensor:
    """Turn the part of ``h`` in the plane to the angle ``degrees``.

    Parameters
    ----------
    h : activations [..., d] of any floating type; coordinates are computed in float32.
    b1, b2 : orthonormal vectors [d]; 0° is along ``b1``, 90° along ``b2``.
    degrees : one angle, or one a row of ``h`` [B, ...] (of shape [B] or [B, 1, 1]).
    gate : see :data:`Gate`. With :class:`Graded`, ``h`` goes that share of the shorter way round, at constant length.

    Returns
    -------
    A new tensor of the shape and type of ``h``; where the gate is shut, exactly ``h``.
    """
    return Turn(basis_of(b1, b2), "set", gate)(h, degrees)


def rotate(h: Tensor, b1: Tensor, b2: Tensor, degrees: float | Sequence[float] | Tensor, gate: Gate = None) -> Tensor:
    """Turn the part of ``h`` in the plane by the angle ``degrees``, counter-clockwise. Arguments as in
    :func:`set_angle`.
    """
    return Turn(basis_of(b1, b2), "rotate", gate)(h, degrees)


class Turn:
    """One operator with its plane made ready, for hooks that run many times.

    Parameters
    ----------
    basis : orthonormal columns, float32 [d, 2].
    form : ``"set"`` or ``"rotate"``.
    gate : see :data:`Gate`.
    """

    def __init__(self, basis: Tensor, form: Form = "set", gate: Gate = None) -> None:
        if form not in ("set", "rotate"):
            raise InputError(f"form {form!r}: expected 'set' or 'rotate'")
        if gate not in (None, "adaptive") and not isinstance(gate, Graded):
            raise InputError(f"gate {gate!r}: expected None, 'adaptive' or Graded(tau, scale)")
        self.form: Form = form
        self.gate: Gate = gate
        self._basis = basis.contiguous()
        self._rows = self._basis.T.contiguous()
        self._b1, self._b2 = self._rows

    def to(self, device: torch.device) -> Turn:
        """This operator on ``device``."""
        return self if self._basis.device == device else Turn(self._basis.to(device), self.form, self.gate)

    def __call__(self, h: Tensor, degrees: float | Sequence[float] | Tensor) -> Tensor:
        return self.apply(h, unit_of(degrees, h))

    def apply(self, h: Tensor, unit: Tensor) -> Tensor:
        """Turn ``h`` by (cos, sin) of the angles, float32 [2] or [B, 2], see :func:`unit_of`."""
        if h.numel() == h.shape[-1] and h.device.type == "cpu" and not torch.is_grad_enabled():
            return self._one(h, unit)
        # Few and fused calls: in a small batch the calls themselves, and not their arithmetic, are what a hook costs.
        flat = h.reshape(-1, h.shape[-1])
        wide = flat if flat.dtype == torch.float32 else flat.float()
        plane = torch.mm(wide, self._basis)
        if unit.dim() == 2:
            # One angle a row: every token of the row gets it.
            unit = unit.repeat_interleave(flat.shape[0] // unit.shape[0], dim=0)
        # What is taken away, so that one call subtracts the target: coordinates before minus coordinates after.
        if isinstance(self.gate, Graded):
            away = plane - self._graded(plane, unit, self.gate)
        elif self.form == "set":
            away = torch.addcmul(plane, torch.linalg.vector_norm(plane, dim=1, keepdim=True), unit, value=-1)
        else:
            away = plane - _turned(plane, unit)
        if self.gate == "adaptive":
            away.mul_(plane.narrow(1, 0, 1) > 0)
        # One pass over h: h - away @ [b1 b2]ᵀ, written to a new tensor.
        turned = torch.addmm(wide, away, self._rows, alpha=-1).view(h.shape)
        return turned if turned.dtype == h.dtype else turned.to(h.dtype)

    def _one(self, h: Tensor, unit: Tensor) -> Tensor:
        """The same for a single activation: two numbers are turned faster in Python than by a dozen calls."""
        wide = h if h.dtype == torch.float32 else h.float()
        c1, c2 = torch.mv(self._rows, wide.reshape(-1)).tolist()
        if self.gate == "adaptive" and c1 <= 0:
            return h.clone()
        cos, sin = unit.reshape(-1).tolist() if unit.dim() == 2 else unit.tolist()
        if isinstance(self.gate, Graded):
            new1, new2 = self._graded(torch.tensor([[c1, c2]]), unit, self.gate)[0].tolist()
        elif self.form == "set":
            length = math.hypot(c1, c2)
            new1, new2 = length * cos, length * sin
        else:
            new1, new2 = c1 * cos - c2 * sin, c1 * sin + c2 * cos
        turned = wide.add(self._b1, alpha=new1 - c1).add_(self._b2, alpha=new2 - c2)
        return turned if turned.dtype == h.dtype else turned.to(h.dtype)

    def _graded(self, plane: Tensor, unit: Tensor, gate: Graded) -> Tensor:
        """Coordinates [N, 2] after a share of the turn."""
        # A share of the angle, not of the displacement: that would shorten h.
        share = torch.sigmoid((plane[:, 0] - gate.tau) / gate.scale)
        aim = torch.atan2(unit[..., 1], unit[..., 0])
        here = torch.atan2(plane[:, 1], plane[:, 0])
        way = torch.remainder(aim - here + math.pi, 2 * math.pi) - math.pi if self.form == "set" else aim
        angle = here + share * way
        length = torch.linalg.vector_norm(plane, dim=1, keepdim=True)
        return length * torch.stack([angle.cos(), angle.sin()], dim=1)


def _turned(plane: Tensor, unit: Tensor) -> Tensor:
    """Coordinates [N, 2] after a rotation by the angle of ``unit``."""
    cos, sin = unit[..., 0], unit[..., 1]
    c1, c2 = plane[:, 0], plane[:, 1]
    return torch.stack([c1 * cos - c2 * sin, c1 * sin + c2 * cos], dim=1)


def unit_of(degrees: float | Sequence[float] | Tensor, h: Tensor) -> Tensor:
    """(cos, sin) of one angle, float32 [2], or of one a row of ``h``, [B, 2]; exact at multiples of 90°.

    Raises
    ------
    InputError
        If an angle is not finite, or there is more than one and not one a row.
    """
    angles = torch.as_tensor(degrees, dtype=torch.float64, device="cpu")
    if not bool(angles.isfinite().all()):
        raise InputError(f"degrees {degrees}: expected finite angles")
    angles = angles.reshape(-1) if angles.numel() != 1 or angles.dim() else angles
    if angles.dim() and (h.dim() < 2 or len(angles) != h.shape[0]):
        raise InputError(f"degrees: {len(angles)} angles for {h.shape[0] if h.dim() > 1 else 1} rows of activations")
    return cos_sin(angles).to(h.device)


def cos_sin(degrees: Tensor) -> Tensor:
    """(cos, sin) of float64 angles in degrees, float32 [..., 2]; exact at multiples of 90°."""
    turns = torch.remainder(degrees, 360.0)
    radians = torch.deg2rad(turns)
    unit = torch.stack([radians.cos(), radians.sin()], dim=-1)
    # cos 90° is 6e-17 in floating point; a quarter turn should be exact.
    return torch.where(unit.abs() < 1e-15, torch.zeros_like(unit), unit).float()
