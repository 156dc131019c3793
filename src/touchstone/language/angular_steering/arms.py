"""Arms of a comparison: rotation and its baselines, each with a grid of settings, all applied in the same way.

An arm says which settings it is tried at (angles, multiples of the activation norm, system lines) and gives the edits
for one setting a row, so that a sweep can put many settings into one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language.angular_steering.operators import Form, Graded
from touchstone.language.angular_steering.plane import Layers, SteeringPlane
from touchstone.language.angular_steering.steer import PerRow, steering_edits
from touchstone.language.layout import Site
from touchstone.language.model import Edit

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel, Prompt

__all__ = ["Ablation", "Addition", "Arm", "Prompting", "Rotation", "Unsteered", "residual_plane", "selective"]

CIRCLE = tuple(float(angle) for angle in range(0, 360, 10))
"""Every 10°, the grid of the paper."""


class Arm(Protocol):
    """A way to change a model's behaviour, with the settings at which it is tried."""

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> str:
        """Unit of the settings."""

    @property
    def values(self) -> tuple[float, ...]:
        """The settings."""

    def edits(self, model: LanguageModel, values: Sequence[float]) -> dict[Site | str, Edit]:
        """Edits for :meth:`LanguageModel.edited`, given a setting for each prompt that will be passed."""

    def system(self, value: float) -> str | None:
        """System line that belongs to a setting."""


@dataclass(frozen=True)
class Unsteered:
    """The model as it is."""

    name: str = "unsteered"
    unit: str = ""
    values: tuple[float, ...] = (0.0,)

    def edits(self, model: LanguageModel, values: Sequence[float]) -> dict[Site | str, Edit]:
        return {}

    def system(self, value: float) -> str | None:
        return None


@dataclass(frozen=True)
class Rotation:
    """Angular steering; settings are angles in degrees. Parameters as in :meth:`SteeringPlane.attach`."""

    plane: SteeringPlane
    values: tuple[float, ...] = CIRCLE
    adaptive: bool | Graded = True
    form: Form = "set"
    layers: Layers = "all"
    prompt_only: bool = False
    name: str = "rotation"
    unit: str = "degrees"

    def edits(self, model: LanguageModel, values: Sequence[float]) -> dict[Site | str, Edit]:
        edits, _ = steering_edits(
            self.plane,
            model,
            values,
            adaptive=self.adaptive,
            form=self.form,
            layers=self.layers,
            prompt_only=self.prompt_only,
        )
        return edits

    def system(self, value: float) -> str | None:
        return None


def selective(plane: SteeringPlane, values: Sequence[float] = CIRCLE, name: str = "selective steering") -> Rotation:
    """Selective Steering (arXiv 2601.19375): rotate-by at the points where the classes lie on opposite sides of b1."""
    return Rotation(plane, tuple(values), adaptive=False, form="rotate", layers="discriminative", name=name)


@dataclass(frozen=True)
class Addition:
    """Activation addition, h' = h + α m d̂; settings are α.

    Parameters
    ----------
    plane : gives the direction d̂ = b1, the points, and m, the mean activation norm at each point.
    values : settings α, in units of m.
    layers : see :meth:`SteeringPlane.points`; one layer and all layers are both usual.
    own : use each point's own direction in place of b1.
    """

    plane: SteeringPlane
    values: tuple[float, ...]
    layers: Layers = "all"
    own: bool = False
    name: str = "addition"
    unit: str = "activation norms"

    def edits(self, model: LanguageModel, values: Sequence[float]) -> dict[Site | str, Edit]:
        amounts = PerRow(model, torch.tensor(values, dtype=torch.float32).unsqueeze(-1))
        norms = dict(zip(self.plane.sites, self.plane.diagnostics["activation_norm"], strict=True))
        directions = _directions(self.plane, self.layers, self.own)
        return {site: _Add(amounts, vector * float(norms[site])) for site, vector in directions.items()}

    def system(self, value: float) -> str | None:
        return None


@dataclass(frozen=True)
class Ablation:
    """Directional ablation, h' = h − (h·d̂) d̂ at all points and tokens; it has one setting, 1.

    Parameters as in :class:`Addition`.
    """

    plane: SteeringPlane
    layers: Layers = "all"
    own: bool = False
    name: str = "ablation"
    unit: str = ""
    values: tuple[float, ...] = (1.0,)

    def edits(self, model: LanguageModel, values: Sequence[float]) -> dict[Site | str, Edit]:
        shares = PerRow(model, torch.tensor(values, dtype=torch.float32).unsqueeze(-1))
        return {
            site: _Remove(shares, vector) for site, vector in _directions(self.plane, self.layers, self.own).items()
        }

    def system(self, value: float) -> str | None:
        return None


@dataclass(frozen=True)
class Prompting:
    """A system line that asks for the behaviour; setting i is the i-th line."""

    lines: tuple[str, ...]
    name: str = "prompting"
    unit: str = "line"
    values: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.lines or not all(self.lines):
            raise InputError("lines: expected at least one system line, none of them empty")
        object.__setattr__(self, "values", tuple(float(i) for i in range(len(self.lines))))

    def edits(self, model: LanguageModel, values: Sequence[float]) -> dict[Site | str, Edit]:
        return {}

    def system(self, value: float) -> str | None:
        return self.lines[int(value)]


def residual_plane(
    model: LanguageModel,
    positive: Sequence[Prompt],
    negative: Sequence[Prompt],
    *,
    system: str | None = None,
    batch_size: int = 32,
    progress: Callable[[int], None] | None = None,
) -> SteeringPlane:
    """Directions in the residual stream (the blocks' outputs), where addition and ablation are usually applied."""
    return SteeringPlane.fit(
        model,
        positive,
        negative,
        second="random",
        sites=model.sites("output"),
        system=system,
        batch_size=batch_size,
        progress=progress,
    )


def _directions(plane: SteeringPlane, layers: Layers, own: bool) -> dict[Site, Tensor]:
    places = {site: i for i, site in enumerate(plane.sites)}
    if not own:
        return dict.fromkeys(plane.points(layers), plane.b1)
    # A point without a direction of its own is left alone.
    return {
        site: plane.candidates[places[site]] / plane.candidates[places[site]].norm()
        for site in plane.points(layers)
        if bool(plane.diagnostics["kept"].iloc[places[site]])
    }


class _Add:
    def __init__(self, amounts: PerRow, vector: Tensor) -> None:
        self._amounts = amounts
        self._vector = vector

    def __call__(self, h: Tensor) -> Tensor:
        amount = self._amounts.pick(h).view(-1, 1, 1)
        return (h.float() + amount * self._vector.to(h.device)).to(h.dtype)


class _Remove:
    def __init__(self, shares: PerRow, vector: Tensor) -> None:
        self._shares = shares
        self._vector = vector

    def __call__(self, h: Tensor) -> Tensor:
        share, vector = self._shares.pick(h).view(-1, 1, 1), self._vector.to(h.device)
        wide = h.float()
        return (wide - share * (wide @ vector).unsqueeze(-1) * vector).to(h.dtype)
