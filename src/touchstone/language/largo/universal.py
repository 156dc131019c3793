"""One text for many goals: optimised for some of them, measured on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from touchstone.errors import InputError
from touchstone.evidence import Measurement
from touchstone.language.largo.latent import start
from touchstone.language.largo.result import Behaviour

if TYPE_CHECKING:
    from touchstone.language.largo.largo import Largo
    from touchstone.language.largo.trial import Trial

__all__ = ["Suffix", "universal"]


@dataclass(frozen=True)
class Suffix:
    """The text of one epoch.

    Attributes
    ----------
    epoch : from 0 on.
    text : the text.
    train, test : share of guards that gave way, with intervals; nothing was optimised or chosen on the test goals.
    loss : mean loss of the targets of the training goals, nats a token.
    """

    epoch: int
    text: str = field(repr=False)
    train: Measurement
    test: Measurement
    loss: float


def universal(
    attack: Largo,
    train: Sequence[Behaviour],
    test: Sequence[Behaviour],
    *,
    epochs: int = 10,
    passes: int = 25,
    batch: int = 10,
    progress: Callable[[int], None] | None = None,
) -> list[Suffix]:
    """Optimise one latent for all training goals, put it into words once an epoch, and keep every epoch's text.

    The official code measures success on the goals it trains on; here the test goals are others.

    Parameters
    ----------
    attack : its slot, descent, decoding, model and judges.
    train, test : behaviours; the two share no goal.
    epochs : each starts from the words of the one before; the official code runs 100.
    passes : over the training goals in an epoch, as in the official code.
    batch : goals whose gradients are averaged for a step, as there.
    progress : called with 1 after each epoch.

    Returns
    -------
    One suffix an epoch, the best on the training goals first.

    Raises
    ------
    InputError
        If the lists share a goal, one is empty, or a number is below 1.
    """
    shared = {one.goal for one in train} & {one.goal for one in test}
    if shared:
        raise InputError(f"train, test: both hold the goal {min(shared)!r}; its success would be no test")
    if not train or not test:
        raise InputError("train, test: expected at least one behaviour each")
    if min(epochs, passes, batch) < 1:
        raise InputError(f"epochs {epochs}, passes {passes}, batch {batch}: expected 1 or more")
    from touchstone.language.largo.largo import back_projected, spoken

    rng = np.random.default_rng(attack.seed)
    trials = [attack.trial(behaviour, place) for place, behaviour in enumerate(train)]
    first = trials[0]
    held_out = [attack.trial(behaviour) for behaviour in test]
    latent = start(attack.model, attack.init, attack.suffix_len, first.generator)
    found = []
    for epoch in range(epochs):
        slots = [[trials[i].slot for i in part] for part in _batches(len(trials), passes, batch, rng)]
        latent, _ = attack.descent.run_many(slots, latent)
        texts = spoken(first, latent, attack.samples, attack.temperature)
        losses = torch.tensor([trial.losses(texts) for trial in trials]).mean(dim=0)
        place = int(losses.argmin())
        found.append(
            Suffix(
                epoch,
                texts[place],
                _rate("guards that gave way, training goals", trials, texts[place]),
                _rate("guards that gave way, goals held out", held_out, texts[place]),
                float(losses[place]),
            )
        )
        latent = back_projected(first, texts[place])
        if progress is not None:
            progress(1)
    return sorted(found, key=lambda one: (-one.train.value, one.loss, one.epoch))


def _batches(n: int, passes: int, batch: int, rng: np.random.Generator) -> list[list[int]]:
    orders = [rng.permutation(n) for _ in range(passes)]
    return [[int(i) for i in order[at : at + batch]] for order in orders for at in range(0, n, batch)]


def _rate(name: str, trials: Sequence[Trial], text: str) -> Measurement:
    hits = [trial.replies([text])[0].broke for trial in trials]
    return Measurement.rate(name, sum(hits), len(hits))
