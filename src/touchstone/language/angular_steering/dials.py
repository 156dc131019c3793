"""Two dials at once: planes of several behaviours made orthogonal, so that turning one leaves the others' angle
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from touchstone.errors import InputError
from touchstone.language.angular_steering.arms import Rotation, Unsteered
from touchstone.language.angular_steering.plane import SteeringPlane
from touchstone.language.angular_steering.steer import Degrees, marked, steering_edits
from touchstone.language.angular_steering.sweeping import Contrast, sweep
from touchstone.language.model import LanguageModel

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["Dials", "interference", "orthogonalised"]


def orthogonalised(planes: Sequence[SteeringPlane]) -> list[SteeringPlane]:
    """The planes with each one's axes made orthogonal to those of the planes before it; the first stays as it is.

    Rotations in orthogonal planes commute, and none of them changes another's angle. It does not follow that the
    behaviours are independent: :func:`interference` measures that.

    Raises
    ------
    InputError
        If the widths differ, or an axis lies in the span of the planes before it.
    """
    if len({plane.width for plane in planes}) > 1:
        raise InputError("planes: expected planes of one width")
    taken: list[np.ndarray] = []
    found = []
    for k, plane in enumerate(planes):
        axes = []
        for name, axis in (("b1", plane.b1), ("b2", plane.b2)):
            rest = axis.double().numpy()
            # Twice, against the rounding that a short remainder blows up.
            for _ in range(2):
                for other in taken:
                    rest = rest - (rest @ other) * other
            length = float(np.linalg.norm(rest))
            if length < 1e-3:
                raise InputError(f"planes: {name} of plane {k} lies in the span of the planes before it")
            axes.append(rest / length)
            taken.append(axes[-1])
        b1, b2 = (torch.from_numpy(axis).float() for axis in axes)
        found.append(plane if k == 0 else replace(plane, b1=b1, b2=b2))
    return found


class Dials:
    """Several behaviours steered at once, while the ``with`` block runs.

    Parameters
    ----------
    planes : one plane a behaviour; they are orthogonalised in this order, see :func:`orthogonalised`.
    model : the model to steer.
    degrees : an angle for each plane; ``None`` leaves that dial alone.
    steering : ``adaptive``, ``form``, ``layers`` and ``prompt_only``, as in :meth:`SteeringPlane.attach`, for all
        planes.
    """

    def __init__(
        self,
        planes: Sequence[SteeringPlane],
        model: LanguageModel,
        degrees: Sequence[Degrees | None],
        **steering: Any,
    ) -> None:
        if len(planes) != len(degrees) or not planes:
            raise InputError(f"degrees: {len(degrees)} for {len(planes)} planes; expected one each, at least one")
        self.planes = orthogonalised(planes)
        self.model = model
        edits = []
        for plane, angle in zip(self.planes, degrees, strict=True):
            plane.check_fits(model)
            if angle is not None:
                edits.append(steering_edits(plane, model, angle, **steering))
        self._edits = edits
        self._hooks = ExitStack()

    def __enter__(self) -> Dials:
        with ExitStack() as stack:
            stack.enter_context(marked(self.model))
            for edits, by_row in self._edits:
                stack.enter_context(self.model.edited(edits, by_row=by_row))
            self._hooks = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()


def interference(
    planes: dict[str, SteeringPlane],
    model: LanguageModel,
    contrasts: dict[str, Contrast],
    prompts: dict[str, Sequence[str]],
    *,
    degrees: Sequence[float] = (0.0, 60.0, 120.0, 180.0, 240.0, 300.0),
    orthogonal: bool = True,
    run: Run | None = None,
    **steering: Any,
) -> pd.DataFrame:
    """How far each dial moves each behaviour: row = dial turned, column = behaviour measured.

    An entry is the largest change of the behaviour's mean score from the unsteered model over ``degrees``, in the unit
    of its contrast. Divide a column by its diagonal to see shares.

    Parameters
    ----------
    planes, contrasts, prompts : by behaviour, with the same keys.
    orthogonal : orthogonalise the planes first, as :class:`Dials` does.
    """
    names = list(planes)
    if set(contrasts) != set(names) or set(prompts) != set(names):
        raise InputError("planes, contrasts, prompts: expected the same behaviours in all three")
    made = orthogonalised([planes[name] for name in names]) if orthogonal else [planes[name] for name in names]
    arms = [Rotation(plane, tuple(degrees), name=name, **steering) for name, plane in zip(names, made, strict=True)]
    table = pd.DataFrame(index=names, columns=names, dtype=float)
    for behaviour in names:
        frame = sweep(
            model,
            [Unsteered(), *arms],
            prompts[behaviour],
            contrast=contrasts[behaviour],
            run=run,
            label=f"interference with {behaviour}",
        )
        means = frame.groupby(["arm", "value"])["score"].mean()
        base = float(means["unsteered"].iloc[0])
        for dial in names:
            table.loc[dial, behaviour] = float((means[dial] - base).abs().max())
    return table
