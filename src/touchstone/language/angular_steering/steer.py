"""Steering a model: the plane's operator as forward hooks on the norms, with one angle or one a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language.angular_steering.operators import Form, Gate, Graded, Turn, basis_of, cos_sin
from touchstone.language.batching import Batch
from touchstone.language.layout import Site
from touchstone.language.model import Edit, LanguageModel

if TYPE_CHECKING:
    from types import TracebackType

    from touchstone.language.angular_steering.plane import Layers, SteeringPlane

__all__ = ["Degrees", "PerRow", "Steered", "reads_prompt", "steering_edits"]

Degrees = float | Sequence[float] | Tensor
"""One angle, or one for each prompt that is passed to the model's methods; any real number, in degrees."""

# Name of the mark on a module whose hooks steer it. On the module, because two LanguageModels may share one.
_MARK = "_touchstone_steered"


class PerRow:
    """A setting of an edit that may differ from prompt to prompt: one row of numbers for all, or one for each prompt.

    Parameters
    ----------
    model : tells which prompts the rows of the pass under way stand for.
    values : float32 [k], or [prompts, k].
    """

    def __init__(self, model: LanguageModel, values: Tensor) -> None:
        self._model = model
        self._values = values
        self._batch: Batch | None = None
        self._picked = values

    @property
    def by_row(self) -> bool:
        return self._values.dim() == 2

    def pick(self, h: Tensor) -> Tensor:
        """The numbers [k] or, one row for each of ``h`` [B, T, d], [B, k], on the device of ``h``."""
        if self._values.device != h.device:
            # Not inside inference mode: what is kept must also serve passes that compute gradients.
            with torch.inference_mode(False):
                self._values = self._values.to(h.device)
            self._batch = None
        if not self.by_row:
            return self._values
        batch = self._model.batch
        if batch is None or batch.rows is None:
            if len(self._values) != len(h):
                raise InputError(f"one value a prompt: {len(self._values)} values for a batch of {len(h)} rows")
            return self._values
        if batch is not self._batch:
            # Once a pass and not once a site.
            if int(batch.rows.max()) >= len(self._values):
                raise InputError(f"one value a prompt: {len(self._values)} values for more prompts than that")
            self._batch, self._picked = batch, self._values[batch.rows]
        return self._picked


def reads_prompt(model: LanguageModel, h: Tensor) -> bool:
    """Whether the pass under way reads a prompt; outside the methods of ``model``, passes over several tokens do."""
    return h.shape[1] > 1 if model.batch is None else model.batch.prompt


def angles_of(degrees: Degrees) -> Tensor:
    """(cos, sin) of one angle [2] or of one for each prompt [prompts, 2]; raises on angles that are not finite."""
    angles = torch.as_tensor(degrees, dtype=torch.float64, device="cpu")
    if angles.dim() > 1 or angles.numel() == 0:
        raise InputError(
            f"degrees: expected one angle, or a list with one for each prompt, got shape {tuple(angles.shape)}"
        )
    if not bool(angles.isfinite().all()):
        raise InputError(f"degrees {degrees}: expected finite angles")
    return cos_sin(angles)


def gate_of(adaptive: bool | Graded) -> Gate:
    if isinstance(adaptive, Graded):
        return adaptive
    if not isinstance(adaptive, bool):
        raise InputError(f"adaptive {adaptive!r}: expected True, False or Graded(tau, scale)")
    return "adaptive" if adaptive else None


class _TurnEdit:
    """The edit at one site."""

    def __init__(self, model: LanguageModel, turn: Turn, angles: PerRow, prompt_only: bool) -> None:
        self._model = model
        self._turn = turn
        self._angles = angles
        self._prompt_only = prompt_only

    def __call__(self, h: Tensor) -> Tensor:
        if self._prompt_only and not reads_prompt(self._model, h):
            return h
        # A model may be spread over devices: each site's edit follows its own.
        self._turn = self._turn.to(h.device)
        return self._turn.apply(h, self._angles.pick(h))


def steering_edits(
    plane: SteeringPlane,
    model: LanguageModel,
    degrees: Degrees,
    *,
    adaptive: bool | Graded = True,
    form: Form = "set",
    layers: Layers = "all",
    prompt_only: bool = False,
) -> tuple[dict[Site | str, Edit], bool]:
    """The edits for :meth:`LanguageModel.edited`, and whether they treat prompts differently (its ``by_row``)."""
    plane.check_fits(model, warn=False)
    angles = PerRow(model, angles_of(degrees))
    turn = Turn(basis_of(plane.b1, plane.b2), form, gate_of(adaptive))
    edits: dict[Site | str, Edit] = {site: _TurnEdit(model, turn, angles, prompt_only) for site in plane.points(layers)}
    return edits, angles.by_row


class Steered:
    """A model that is being steered, until :meth:`detach` or the end of the ``with`` block.

    The steering is made of ordinary forward hooks on the model's norms, so that ``model.module`` is steered too: it
    can be handed to ``transformers``' own ``generate`` or to an evaluation harness
    (``lm_eval.models.huggingface.HFLM(pretrained= model.module, tokenizer=model.tokenizer)``) meanwhile. Rows of
    padding are turned as well, which no real token sees.

    Parameters
    ----------
    plane : the plane.
    model : the model to steer.
    degrees : one angle, or one for each prompt that will be passed to the model's methods.
    adaptive : turn only activations on the positive side of b1 (the paper's, and the default), all of them (false), or
        each by a share (:class:`~touchstone.language.angular_steering.operators.Graded`).
    form : ``"set"`` turns to the angle, so that no angle means "no steering"; ``"rotate"`` turns by it, 0° is none.
    layers : see :meth:`SteeringPlane.points`.
    prompt_only : turn the activations of the prompt only; the reply's tokens read its keys and values from the cache.

    Raises
    ------
    InputError
        If the plane does not fit, the model is already steered, or an angle is not finite.
    """

    def __init__(
        self,
        plane: SteeringPlane,
        model: LanguageModel,
        degrees: Degrees,
        *,
        adaptive: bool | Graded = True,
        form: Form = "set",
        layers: Layers = "all",
        prompt_only: bool = False,
    ) -> None:
        plane.check_fits(model)
        self.plane = plane
        self.model = model
        self.degrees = degrees
        self._settings: dict[str, Any] = {
            "adaptive": adaptive,
            "form": form,
            "layers": layers,
            "prompt_only": prompt_only,
        }
        self._hooks: ExitStack | None = None
        self.set_degrees(degrees)

    @property
    def attached(self) -> bool:
        """Whether the model is still being steered by this."""
        return self._hooks is not None

    def set_degrees(self, degrees: Degrees) -> None:
        """Turn the dial, attaching it again if it was detached; an angle that is refused changes nothing."""
        edits, by_row = steering_edits(self.plane, self.model, degrees, **self._settings)
        self.detach()
        with ExitStack() as stack:
            stack.enter_context(marked(self.model))
            stack.enter_context(self.model.edited(edits, by_row=by_row))
            self._hooks = stack.pop_all()
        self.degrees = degrees

    def detach(self) -> None:
        """Remove all hooks; does nothing if they are gone."""
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            hooks.close()

    def __enter__(self) -> Steered:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()


@contextmanager
def marked(model: LanguageModel) -> Iterator[None]:
    """Mark a model as steered while the block runs; refuse one that already is."""
    module = model.module
    if getattr(module, _MARK, False):
        raise InputError(f"model {model.source} is already steered; detach that first, or use Dials for two planes")
    setattr(module, _MARK, True)
    try:
        yield
    finally:
        delattr(module, _MARK)
