"""Other attacks with the same interface and budget: what LARGO has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language import threads
from touchstone.language.gradients import frozen
from touchstone.language.largo.largo import as_texts, back_projected, spoken
from touchstone.language.largo.latent import Descent, Start, embedding_table, start
from touchstone.language.largo.slot import embedded
from touchstone.language.largo.trial import Attack, Trial

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["GCG", "BestOfN", "Genetic", "NearestToken", "Uniform"]


class Uniform(Attack):
    """Texts of tokens drawn evenly from the allowed ones.

    Parameters
    ----------
    model, shared : see :class:`Attack`.
    batch : texts tried in one pass.
    """

    name = "uniform"

    def __init__(self, model: LanguageModel, *, batch: int = 16, **shared: Any) -> None:
        super().__init__(model, **shared)
        self.batch = _at_least("batch", batch, 1)

    def search(self, trial: Trial) -> None:
        misses = 0
        while not trial.is_over and misses < _MISSES:
            before = trial.meter.checks
            trial.check(as_texts(trial, _drawn(trial, self.batch).tolist()))
            trial.end_round(trial.attempts[-1].text)
            misses = 0 if trial.meter.checks > before else misses + 1


class BestOfN(Attack):
    """Stage 2 without stage 1: texts by which the model renders a latent that carries nothing.

    Parameters
    ----------
    model, shared : see :class:`Attack`.
    latent : ``"zero"``, or ``"random"``: normal, of the tokens' mean norm, drawn anew each round.
    samples : texts sampled a round beside the greedy one.
    temperature : of the samples.
    try_all : try every text, which saves token-forwards; otherwise the one of lowest loss, as LARGO does, which saves
        checks.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        latent: Literal["zero", "random"] = "zero",
        samples: int = 4,
        temperature: float = 1.0,
        try_all: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(model, **shared)
        if latent not in ("zero", "random"):
            raise InputError(f"latent {latent!r}: expected 'zero' or 'random'")
        self.latent, self.temperature = latent, temperature
        self.samples = _at_least("samples", samples, 1)
        self.try_all = try_all
        self.name = f"{latent}-latent{'-all' if try_all else ''}"

    def search(self, trial: Trial) -> None:
        misses = 0
        while not trial.is_over and misses < _MISSES:
            before = trial.meter.checks
            kind: Start = "zeros" if self.latent == "zero" else "random"
            latent = start(self.model, kind, self.suffix_len, trial.generator)
            texts = spoken(trial, latent, self.samples, self.temperature)
            trial.check(texts if self.try_all else self._best(trial, texts))
            trial.end_round(trial.attempts[-1].text)
            misses = 0 if trial.meter.checks > before else misses + 1

    def _best(self, trial: Trial, texts: list[str]) -> list[str]:
        new = trial.untried(texts)
        losses = dict(zip(new, trial.losses(new), strict=True))
        return [min(new, key=losses.__getitem__)] if new else []


class NearestToken(Attack):
    """LARGO with stage 2 exchanged for the usual way from soft to hard: each position's nearest token embedding.

    Parameters
    ----------
    model, shared : see :class:`Attack`.
    steps, lr, weight_decay, init : see :class:`~touchstone.language.largo.largo.Largo`. Where a round ends at a text
        that was tried, the next one begins at random tokens.
    """

    name = "nearest-token"

    def __init__(
        self,
        model: LanguageModel,
        *,
        steps: int = 20,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        init: Start = "zeros",
        **shared: Any,
    ) -> None:
        super().__init__(model, **shared)
        self.descent, self.init = Descent(steps, lr, weight_decay), init
        start(model, init, 1)

    def search(self, trial: Trial) -> None:
        table = embedding_table(self.model)
        latent = start(self.model, self.init, self.suffix_len, trial.generator)
        while not trial.is_over:
            latent, course = self.descent.run(trial.slot, latent)
            allowed = trial.words.ids
            nearest = allowed[torch.cdist(latent, table[allowed]).argmin(dim=-1)]
            [text] = as_texts(trial, [nearest.tolist()])
            trial.losses([text])
            is_new = bool(trial.untried([text]))
            trial.check([text])
            trial.end_round(text, course)
            [again] = as_texts(trial, _drawn(trial, 1).tolist())
            latent = back_projected(trial, text if is_new else again)


class GCG(Attack):
    """Greedy coordinate gradient (Zou et al. 2023, arXiv 2307.15043): token swaps led by the one-hot gradient.

    Parameters
    ----------
    model, shared : see :class:`Attack`.
    topk : candidates a position, those with the steepest −∂ℓ/∂one-hot; the paper's default.
    width : random single swaps scored a step. The paper takes 512; a small budget is better spent on more steps.
    steps : most steps; ``None`` for as many as the budget holds.
    start_at : text to begin with; random tokens if ``None``.
    check_every : steps between tries on the guard.
    """

    name = "gcg"

    def __init__(
        self,
        model: LanguageModel,
        *,
        topk: int = 256,
        width: int = 512,
        steps: int | None = None,
        start_at: str | None = None,
        check_every: int = 1,
        **shared: Any,
    ) -> None:
        super().__init__(model, **shared)
        self.topk, self.width = _at_least("topk", topk, 1), _at_least("width", width, 1)
        self.steps, self.start_at = steps, start_at
        self.check_every = _at_least("check_every", check_every, 1)
        if steps is None and self.budget is None and self.max_checks is None:
            raise InputError("steps: expected a number, or a budget")

    def search(self, trial: Trial) -> None:
        self._table = embedding_table(self.model)
        ids = _drawn(trial, 1)[0] if self.start_at is None else torch.tensor(trial.slot.ids(self.start_at))
        [best] = trial.slot.ids_losses([_whole(trial, ids)])
        step = 0
        while not trial.is_over and (self.steps is None or step < self.steps):
            swaps = self._swaps(trial, ids)
            losses = trial.slot.ids_losses([_whole(trial, row) for row in swaps])
            place = min(range(len(losses)), key=losses.__getitem__)
            # The new state is the best swap even where it is worse, as in the paper: staying would repeat the step.
            ids, best = swaps[place], losses[place]
            step += 1
            if step % self.check_every == 0:
                [text] = as_texts(trial, [ids.tolist()])
                trial.known.setdefault(text, best)
                trial.check([text])
            trial.end_round(as_texts(trial, [ids.tolist()])[0])

    def _swaps(self, trial: Trial, ids: Tensor) -> Tensor:
        """Random single swaps of ``ids`` [n] among the best of each position, int64 [width, n], as they retokenise."""
        free = embedded(self.model, ids.tolist()).requires_grad_()
        with torch.enable_grad(), frozen(self.model.module), threads.suiting(self.model):
            [gradient] = torch.autograd.grad(trial.slot.losses(free[None]).sum(), free)
        allowed = trial.words.ids
        steep = -(gradient.float() @ self._table[allowed].T)
        top = allowed[steep.topk(min(self.topk, len(allowed)), dim=-1).indices].cpu()
        n = len(ids)
        places = torch.randint(n, (self.width,), generator=trial.generator)
        picks = top[places, torch.randint(top.shape[1], (self.width,), generator=trial.generator)]
        swapped = ids.cpu().repeat(self.width, 1)
        swapped[torch.arange(self.width), places] = picks
        swapped = torch.unique(swapped, dim=0)
        same = torch.tensor([_retokenises(trial, row.tolist()) for row in swapped])
        return swapped[same] if bool(same.any()) else swapped


class Genetic(Attack):
    """Genetic search with fitness −ℓ, in the manner of AutoDAN (arXiv 2310.04451) without a writing model.

    Children cross two parents at one cut and mutate words into near ones (by token embeddings) or, as often,
    into random ones.

    Parameters
    ----------
    model, shared : see :class:`Attack`.
    population : texts kept a generation.
    elite : share of them that lives on unchanged.
    mutation : probability that a token is mutated.
    generations : most generations; ``None`` for as many as the budget holds.
    start_at : texts to begin with; random tokens if empty.
    """

    name = "genetic"

    def __init__(
        self,
        model: LanguageModel,
        *,
        population: int = 64,
        elite: float = 0.1,
        mutation: float = 0.1,
        generations: int | None = None,
        start_at: Sequence[str] = (),
        **shared: Any,
    ) -> None:
        super().__init__(model, **shared)
        self.population = _at_least("population", population, 4)
        if not 0 < elite < 1 or not 0 < mutation <= 1:
            raise InputError(f"elite {elite}, mutation {mutation}: expected shares above 0, elite below 1")
        self.elite, self.mutation = max(1, int(elite * population)), mutation
        self.generations, self.start_at = generations, tuple(start_at)
        if generations is None and self.budget is None and self.max_checks is None:
            raise InputError("generations: expected a number, or a budget")

    def search(self, trial: Trial) -> None:
        table = torch.nn.functional.normalize(embedding_table(self.model)[trial.words.ids], dim=-1)
        rows = _drawn(trial, self.population)
        for i, text in enumerate(self.start_at[: self.population]):
            ids = torch.tensor(trial.slot.ids(text))[: self.suffix_len]
            rows[i, : len(ids)] = ids
        generation = 0
        while not trial.is_over and (self.generations is None or generation < self.generations):
            texts = [as_texts(trial, [row])[0] for row in rows.tolist()]
            losses = torch.tensor(trial.losses(texts))
            order = losses.argsort()
            trial.check([texts[int(order[0])]])
            trial.end_round(texts[int(order[0])])
            rows = self._next(trial, rows[order], losses[order], table)
            generation += 1

    def _next(self, trial: Trial, rows: Tensor, losses: Tensor, table: Tensor) -> Tensor:
        generator, n = trial.generator, rows.shape[1]
        pairs = torch.multinomial(torch.softmax(-losses, 0), 2 * (len(rows) - self.elite), True, generator=generator)
        first, second = rows[pairs].chunk(2)
        cut = torch.randint(1, n + 1, (len(first), 1), generator=generator)
        children = torch.where(torch.arange(n) < cut, first, second)
        near = trial.words.ids.cpu()[self._near(trial, children, table)]
        other = torch.where(torch.rand(children.shape, generator=generator) < 0.5, near, _drawn(trial, len(children)))
        mutated = torch.rand(children.shape, generator=generator) < self.mutation
        return torch.cat([rows[: self.elite], torch.where(mutated, other, children)])

    def _near(self, trial: Trial, children: Tensor, table: Tensor) -> Tensor:
        """For each token one of its sixteen nearest, as places among the allowed ones."""
        query = torch.nn.functional.normalize(embedded(self.model, children.flatten().tolist()), dim=-1)
        nearest = (query @ table.T).topk(min(17, len(table)), dim=-1).indices[:, 1:].cpu()
        if nearest.shape[1] == 0:
            return torch.zeros_like(children)
        picked = torch.randint(nearest.shape[1], (len(nearest), 1), generator=trial.generator)
        return nearest.gather(1, picked).reshape(children.shape)


# A small language runs out of texts that were not tried: after so many rounds without a new one a search ends.
_MISSES = 50


def _drawn(trial: Trial, rows: int) -> Tensor:
    allowed = trial.words.ids.cpu()
    return allowed[torch.randint(len(allowed), (rows, trial.suffix_len), generator=trial.generator)]


def _whole(trial: Trial, ids: Tensor) -> list[int]:
    return [*trial.slot.before, *ids.tolist(), *trial.slot.after]


def _retokenises(trial: Trial, ids: list[int]) -> bool:
    """Whether a suffix of these tokens would be read as these tokens once it is text."""
    text = trial.model.decode(ids).strip()
    return bool(text) and trial.slot.ids(text) == ids


def _at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise InputError(f"{name} {value}: expected {least} or more")
    return value
