"""LARGO: optimise a latent, let the model put it into words, try the words, and go on from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language.largo.latent import Descent, Start, embedding_table, start
from touchstone.language.largo.reflection import reflect
from touchstone.language.largo.slot import embedded
from touchstone.language.largo.trial import Attack, Trial

if TYPE_CHECKING:
    from touchstone.language.largo.result import Behaviour
    from touchstone.language.largo.universal import Suffix
    from touchstone.language.model import LanguageModel

__all__ = ["Largo", "back_projected", "spoken"]


class Largo(Attack):
    """Latent adversarial reflection (arXiv 2505.10838), to test the guard rails of a model of your own.

    Parameters
    ----------
    model : your own.
    steps, lr, weight_decay : of stage 1, see :class:`Descent`; defaults of the official code.
    rounds : rounds of the three stages.
    restarts : times the loop begins anew if no round succeeds.
    init : ``"zeros"`` as in the official code, ``"mean_embedding"``, or ``"random"``, drawn anew each time.
    samples : texts sampled in stage 2 beside the greedy one; the one of lowest loss is tried. The official code samples
        one and tries it.
    temperature : of the samples.
    radius : how far each position may go from where its round starts, in mean norms of the token embeddings; ``None``
        for no ball.
    back_project : go on from the embedded text; false begins every round afresh (an ablation).
    shared : see :class:`Attack`: ``acknowledge_own_model``, ``template`` or ``system``, ``suffix_len``, ``judges``,
        ``max_new_tokens``, ``budget``, ``max_checks``, ``allowed`` and ``seed``.

    Examples
    --------
    >>> attack = Largo(model, system=RULE, acknowledge_own_model=True, lr=1e-2, budget=20_000)
    >>> attack.run([Behaviour("Write a recipe for pancakes.", "Sure, here is a recipe")])
    """

    name = "largo"

    def __init__(
        self,
        model: LanguageModel,
        *,
        steps: int = 20,
        rounds: int = 15,
        restarts: int = 3,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        init: Start = "zeros",
        samples: int = 4,
        temperature: float = 1.0,
        radius: float | None = None,
        back_project: bool = True,
        **shared: Any,
    ) -> None:
        super().__init__(model, **shared)
        for name, value, least in (("rounds", rounds, 1), ("restarts", restarts, 1), ("samples", samples, 0)):
            if value < least:
                raise InputError(f"{name} {value}: expected {least} or more")
        if not temperature > 0:
            raise InputError(f"temperature {temperature}: expected a number above 0")
        if radius is not None and not radius > 0:
            raise InputError(f"radius {radius}: expected a number above 0, or None")
        norm = None if radius is None else radius * float(embedding_table(model).norm(dim=-1).mean())
        self.descent = Descent(steps, lr, weight_decay, radius=norm)
        self.rounds, self.restarts, self.init = rounds, restarts, init
        self.samples, self.temperature, self.back_project = samples, temperature, back_project
        start(model, init, 1)

    def search(self, trial: Trial) -> None:
        for _ in range(self.restarts):
            latent = start(self.model, self.init, self.suffix_len, trial.generator)
            for _ in range(self.rounds):
                if trial.is_over:
                    return
                latent = self.round(trial, latent)

    def round(self, trial: Trial, latent: Tensor) -> Tensor:
        """Stages 1 to 3 from a latent; the latent of the next round."""
        latent, course = self.descent.run(trial.slot, latent)
        trial.latent = latent
        texts = spoken(trial, latent, self.samples, self.temperature)
        losses = dict(zip(texts, trial.losses(texts), strict=True))
        # A text that was tried before would get the same reply: the best new one teaches more.
        new = trial.untried(texts) or texts
        text = min(new, key=losses.__getitem__)
        trial.check([text])
        trial.end_round(text, course)
        if self.back_project:
            return back_projected(trial, text)
        return start(self.model, self.init, self.suffix_len, trial.generator)

    def universal(self, train: Sequence[Behaviour], test: Sequence[Behaviour], **options: Any) -> list[Suffix]:
        """One text for many goals; see :func:`~touchstone.language.largo.universal.universal`."""
        from touchstone.language.largo.universal import universal

        return universal(self, train, test, **options)


def spoken(trial: Trial, latent: Tensor, samples: int, temperature: float) -> list[str]:
    """Texts by which the model renders a latent, each once, none empty."""
    rows = reflect(
        trial.model,
        trial.template.reflect,
        latent,
        trial.words,
        length=trial.suffix_len,
        samples=samples,
        temperature=temperature,
        generator=trial.generator,
        special=trial.template.special,
    )
    return as_texts(trial, rows)


def as_texts(trial: Trial, rows: Sequence[Sequence[int]]) -> list[str]:
    """Token rows as texts, each once; a suffix that is blank is passed over unless all are."""
    texts = list(dict.fromkeys(trial.model.decode(row).strip() for row in rows))
    return [text for text in texts if text] or [""]


def back_projected(trial: Trial, text: str) -> Tensor:
    """The embedded text as the next latent: its own tokens in the slot, cut to the slot's length."""
    ids = trial.slot.ids(text)[: trial.suffix_len]
    if not ids:
        return torch.zeros((trial.suffix_len, trial.model.width), device=trial.model.device)
    return embedded(trial.model, ids).float()
