"""Study, part A: what the operators do to random activations, against the closed forms of the paper."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from touchstone.evidence import Finding, Measurement, Table
from touchstone.language.angular_steering.operators import rotate, set_angle

__all__ = ["geometry"]

_WIDTH = 64
_EXACT = 1e-6


def geometry(seed: int, count: int = 10_000) -> tuple[list[Finding], list[Table]]:
    """Findings on ``count`` random activations; float32 throughout, as in a model."""
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn((count, _WIDTH), generator=generator) * torch.rand((count, 1), generator=generator) * 20
    axes, _ = torch.linalg.qr(torch.randn((_WIDTH, 2), generator=generator, dtype=torch.float64))
    b1, b2 = axes.T.float()
    angles = torch.rand(count, generator=generator, dtype=torch.float64) * 360
    turned, rotated = set_angle(h, b1, b2, angles), rotate(h, b1, b2, angles)

    length = h.double().norm(dim=1)
    change = max(float(((x.double().norm(dim=1) - length).abs() / length).max()) for x in (turned, rotated))
    outside = _outside(h, b1, b2)
    drift = max(float(((_outside(x, b1, b2) - outside).norm(dim=1) / length).max()) for x in (turned, rotated))
    reached = torch.atan2(turned.double() @ b2.double(), turned.double() @ b1.double())
    # Where h has next to no part in the plane, rounding of h itself sets the angle.
    clear = (h @ b1).hypot(h @ b2) > 1e-2 * length
    off = float(_difference(torch.rad2deg(reached), angles)[clear].max())
    addition, ablation, dense = _special_cases(h[:300], b1, b2, generator)

    rows = [
        ("norm-kept", "Turning an activation keeps its norm", "largest relative change of the norm", change, _EXACT),
        ("rest-kept", "Turning changes nothing outside the plane", "largest relative change outside", drift, _EXACT),
        ("angle-reached", "The set-angle form reaches its target", "largest error of the angle, degrees", off, 0.01),
        (
            "addition-is-rotation",
            "Adding α d̂ and normalising is a rotation towards d̂ with tan = ‖h⊥‖ / (h·d̂ + α)",
            "largest distance of the two directions",
            addition,
            1e-5,
        ),
        (
            "ablation-is-quarter-turn",
            "Projecting d̂ out gives the direction of a rotation to 90°",
            "largest distance of the two directions",
            ablation,
            1e-5,
        ),
        (
            "equals-projection",
            "Two dot products give what the paper's d × d projection gives",
            "largest relative difference",
            dense,
            _EXACT,
        ),
    ]
    findings = [
        Finding(
            name,
            f"{statement}.",
            "holds" if value <= limit else "fails",
            Measurement(what, value),
            limit=f"<= {limit:g}",
        )
        for name, statement, what, value, limit in rows
    ]
    table = pd.DataFrame(
        [(row[0], row[2], row[3], row[4]) for row in rows], columns=["finding", "what", "value", "limit"]
    )
    return findings, [Table("geometry", f"Geometry on {count} random activations of width {_WIDTH}", table)]


def _outside(h: torch.Tensor, b1: torch.Tensor, b2: torch.Tensor) -> torch.Tensor:
    basis = torch.stack([b1, b2], dim=1).double()
    wide = h.double()
    return wide - (wide @ basis) @ basis.T


def _difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Distance of two angles in degrees."""
    return (torch.remainder(a - b + 180, 360) - 180).abs()


def _special_cases(
    h: torch.Tensor, b1: torch.Tensor, b2: torch.Tensor, generator: torch.Generator
) -> tuple[float, float, float]:
    """Errors of the identities with addition, ablation and the dense projection."""
    addition: list[float] = []
    ablation: list[float] = []
    alphas = torch.randn(len(h), generator=generator, dtype=torch.float64) * 10
    d = b1.double()
    for x, alpha in zip(h.double(), alphas, strict=True):
        along = x @ d
        rest = x - along * d
        angle = float(torch.rad2deg(torch.atan2(rest.norm(), along + alpha)))
        for errors, other, degrees in ((addition, x + alpha * d, angle), (ablation, rest, 90.0)):
            turned = set_angle(x.float(), b1, (rest / rest.norm()).float(), degrees).double()
            errors.append(float((turned / turned.norm() - other / other.norm()).norm()))
    basis = torch.stack([b1, b2], dim=1).double()
    wide, theta = h.double(), np.deg2rad(137.0)
    inside = wide @ (basis @ basis.T)
    target = basis @ torch.tensor([np.cos(theta), np.sin(theta)], dtype=torch.float64)
    expected = wide - inside + inside.norm(dim=1, keepdim=True) * target
    found = set_angle(h, b1, b2, 137.0).double()
    dense = float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())
    return max(addition), max(ablation), dense
