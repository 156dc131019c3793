"""Fine-tuning and unlearning: losses made of a few terms, and one loop with checkpoints that resumes.

Methods, each a weighting of the same terms: gradient ascent (GA), with gradient descent or a KL penalty on retained
data (GA+GD, GA+KL), negative preference optimisation (NPO, arXiv 2404.05868; NPO+GD, NPO+KL), random labels (RL),
NegGrad+ (arXiv 2302.09880's baseline) and SCRUB (arXiv 2302.09880).
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from touchstone.errors import InputError
from touchstone.language import threads
from touchstone.language.checkpoints import keep, resume
from touchstone.language.lora import add_lora, merge_lora
from touchstone.language.model import LanguageModel

__all__ = ["METHODS", "Epoch", "Example", "Objective", "Rows", "Training", "epochs", "examples", "fine_tune", "unlearn"]


@dataclass(frozen=True)
class Example:
    """A token sequence whose last ``learnt`` tokens are to be learnt, or forgotten."""

    ids: tuple[int, ...]
    learnt: int


@dataclass(frozen=True)
class Rows:
    """A batch of examples, padded on the right, where a causal model's other positions cannot see it.

    Attributes
    ----------
    ids : int64 [B, T].
    learnt : bool [B, T-1]; whether the token after each position counts.
    """

    ids: Tensor
    learnt: Tensor

    @classmethod
    def of(cls, chosen: Sequence[Example], pad: int, device: torch.device) -> Rows:
        width = max(len(one.ids) for one in chosen)
        ids = np.full((len(chosen), width), pad, dtype=np.int64)
        learnt = np.zeros((len(chosen), width - 1), dtype=bool)
        for i, one in enumerate(chosen):
            ids[i, : len(one.ids)] = one.ids
            learnt[i, len(one.ids) - one.learnt - 1 : len(one.ids) - 1] = True
        return cls(torch.from_numpy(ids).to(device), torch.from_numpy(learnt).to(device))

    @property
    def targets(self) -> Tensor:
        """The tokens that count, int64 [N]."""
        return self.ids[:, 1:][self.learnt]

    def logits(self, module: nn.Module) -> Tensor:
        """What ``module`` predicts where a token counts, float32 [N, V]."""
        found: Tensor = module(input_ids=self.ids[:, :-1], use_cache=False).logits[self.learnt]
        return found.float()

    def by_sequence(self, values: Tensor) -> Tensor:
        """Sums of values [N] over each row, [B]."""
        return torch.zeros(self.learnt.shape, dtype=values.dtype, device=values.device).masked_scatter(
            self.learnt, values
        ).sum(-1)  # fmt: skip


@dataclass(frozen=True)
class Objective:
    """Weights of the terms whose sum is minimised; means are over tokens, and KL is summed over the vocabulary.

    Attributes
    ----------
    forget_ce, retain_ce : cross-entropy on the data to forget (negative: ascent) and to retain.
    forget_kl, retain_kl : KL(reference ‖ model), the reference being the model before.
    npo : (2/β) mean log(1 + (p/p_ref)^β), with probabilities of whole sequences.
    random_ce : cross-entropy of uniformly random tokens in the place of those to forget.
    beta : of ``npo``.
    """

    forget_ce: float = 0.0
    retain_ce: float = 0.0
    forget_kl: float = 0.0
    retain_kl: float = 0.0
    npo: float = 0.0
    random_ce: float = 0.0
    beta: float = 0.1

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise InputError(f"beta {self.beta}: expected more than 0")
        if not (self.forgets or self.retains):
            raise InputError("objective: all weights are 0")

    @property
    def forgets(self) -> bool:
        """Whether it needs data to forget."""
        return any((self.forget_ce, self.forget_kl, self.npo, self.random_ce))

    @property
    def retains(self) -> bool:
        """Whether it needs data to retain."""
        return any((self.retain_ce, self.retain_kl))

    def loss(
        self,
        policy: nn.Module,
        reference: nn.Module,
        forget: Rows | None,
        retain: Rows | None,
        generator: torch.Generator,
    ) -> Tensor:
        """The weighted sum, a scalar; ``generator`` draws the random labels."""
        total: list[Tensor] = []
        if forget is not None:
            logits, targets = forget.logits(policy), forget.targets
            if self.forget_ce:
                total.append(self.forget_ce * nn.functional.cross_entropy(logits, targets))
            if self.random_ce:
                drawn = torch.randint(logits.shape[-1], targets.shape, generator=generator).to(targets.device)
                total.append(self.random_ce * nn.functional.cross_entropy(logits, drawn))
            if self.forget_kl or self.npo:
                with torch.no_grad():
                    before = forget.logits(reference)
                if self.forget_kl:
                    total.append(self.forget_kl * _kl(before, logits))
                if self.npo:
                    now, then = (forget.by_sequence(_log_p(values, targets)) for values in (logits, before))
                    total.append(self.npo * 2 / self.beta * nn.functional.softplus(self.beta * (now - then)).mean())
        if retain is not None:
            logits = retain.logits(policy)
            if self.retain_ce:
                total.append(self.retain_ce * nn.functional.cross_entropy(logits, retain.targets))
            if self.retain_kl:
                with torch.no_grad():
                    before = retain.logits(reference)
                total.append(self.retain_kl * _kl(before, logits))
        return torch.stack(total).sum()


METHODS = {
    "ga": Objective(forget_ce=-1),
    "ga+gd": Objective(forget_ce=-1, retain_ce=1),
    "ga+kl": Objective(forget_ce=-1, retain_kl=1),
    "npo": Objective(npo=1),
    "npo+gd": Objective(npo=1, retain_ce=1),
    "npo+kl": Objective(npo=1, retain_kl=1),
    "rl": Objective(random_ce=1),
    "neggrad+": Objective(retain_ce=0.999, forget_ce=-0.001),
    "scrub": Objective(retain_kl=0.999, retain_ce=1, forget_kl=-0.99),
}


@dataclass(frozen=True)
class Training:
    """How the loop runs. Defaults are those of the fine-tuning in arXiv 2505.24379, for one device.

    Attributes
    ----------
    epochs : passes over the data to forget, or, where there is none, over the data to retain.
    lr, weight_decay : of AdamW.
    batch_size : examples of one step; ``accumulate`` cuts a step into so many passes, to save memory.
    cosine : decay the rate to 0 along a cosine; constant otherwise.
    clip : largest norm of the gradient; 0 leaves it.
    noise : standard deviation σ of Gaussian noise added to every entry of the gradient, a defence against extraction.
    trainable : ``"all"``, ``"last:N"`` (the last N blocks) or ``"lora"`` (adapters, folded in at the end).
    rank, alpha : of the adapters; they are scaled by ``alpha / rank``.
    seed : of order, noise, random labels and adapters.
    """

    epochs: int = 3
    lr: float = 1e-5
    weight_decay: float = 0.01
    batch_size: int = 16
    accumulate: int = 1
    cosine: bool = False
    clip: float = 0.0
    noise: float = 0.0
    trainable: str = "all"
    rank: int = 16
    alpha: float = 32.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "rank"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)}: expected at least 1")
        for name in ("lr", "alpha"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} {getattr(self, name)}: expected more than 0")
        for name in ("weight_decay", "clip", "noise", "seed"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} {getattr(self, name)}: expected 0 or more")


@dataclass(frozen=True)
class Epoch:
    """An epoch that has just ended.

    Attributes
    ----------
    number : counted from 1.
    model : the model in training, ready to be used until the next epoch is asked for.
    losses : of the steps of all epochs so far.
    """

    number: int
    model: LanguageModel
    losses: list[float]

    def copy(self) -> LanguageModel:
        """The model as it is now, for good."""
        module = copy.deepcopy(self.model.module)
        merge_lora(module)
        return LanguageModel(
            module, self.model.tokenizer, source=f"{self.model.source}, epoch {self.number}", threads=self.model.threads
        )


def examples(model: LanguageModel, texts: Sequence[str | tuple[str, str]], *, end: bool = True) -> list[Example]:
    """Texts, or pairs of prompt and answer, as token sequences; of a pair only the answer is learnt.

    ``end`` appends the token that ends a text, so that the model learns to stop. Tokens of an answer are its own: what
    is trained is what is generated after the prompt's tokens.
    """
    stop = [min(model.stop_ids)] if end and model.stop_ids else []
    found = []
    for i, text in enumerate(texts):
        if isinstance(text, str):
            ids = model.encode([text], chat=False)[0] + stop
            learnt = len(ids) - 1
        else:
            answer = model.encode_continuation(text[1]) + stop
            ids, learnt = model.encode([text[0]], chat=False)[0] + answer, len(answer)
        if learnt < 1:
            raise InputError(f"text {i}: nothing to learn in it; expected two tokens or more")
        found.append(Example(tuple(ids), learnt))
    return found


def epochs(
    model: LanguageModel,
    objective: Objective | str,
    *,
    forget: Sequence[Example] = (),
    retain: Sequence[Example] = (),
    training: Training | None = None,
    leave_out: Collection[int] = (),
    checkpoint: str | Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Epoch]:
    """Train a copy of ``model``, one epoch for each item asked for; the model itself is the reference and stays.

    Parameters
    ----------
    objective : weights of the terms, or the name of one of :data:`METHODS`.
    forget, retain : examples; each step takes a batch of both if the objective has terms on both.
    leave_out : indices of the driving data that are passed over, with the order of the others unchanged: exact
        unlearning is a second run that leaves out the deleted examples.
    checkpoint : safetensors file written after every epoch. If it is there, training continues from it: of the epochs
        that ended before only the last is given again.
    progress : called with the number of steps just finished.

    Raises
    ------
    InputError
        If data that the objective needs are missing, or the checkpoint is of another run.
    """
    wanted = _objective(objective)
    training = training or Training()
    for name, needs, data in (("forget", wanted.forgets, forget), ("retain", wanted.retains, retain)):
        if needs and not data:
            raise InputError(f"{name}: no examples, and the objective needs some")
    kept = set(range(len(forget if wanted.forgets else retain))) - set(leave_out)
    if not kept:
        raise InputError("leave_out: nothing is left to train on")
    return _epochs(model, wanted, list(forget), list(retain), training, kept, checkpoint, progress)


def unlearn(
    model: LanguageModel,
    method: Objective | str,
    forget: Sequence[Example],
    retain: Sequence[Example] = (),
    *,
    training: Training | None = None,
    checkpoint: str | Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> LanguageModel:
    """A copy of ``model`` after the last epoch of :func:`epochs`, adapters folded in."""
    return _last(
        epochs(model, method, forget=forget, retain=retain, training=training, checkpoint=checkpoint, progress=progress)
    )


def fine_tune(
    model: LanguageModel,
    data: Sequence[Example],
    *,
    training: Training | None = None,
    leave_out: Collection[int] = (),
    checkpoint: str | Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> LanguageModel:
    """A copy of ``model`` trained on ``data`` by cross-entropy."""
    plain = Objective(retain_ce=1)
    return _last(
        epochs(
            model, plain, retain=data, training=training, leave_out=leave_out, checkpoint=checkpoint, progress=progress
        )
    )


def _last(run: Iterator[Epoch]) -> LanguageModel:
    *_, last = run
    merge_lora(last.model.module)
    return last.model


def _epochs(
    model: LanguageModel,
    objective: Objective,
    forget: list[Example],
    retain: list[Example],
    training: Training,
    kept: set[int],
    checkpoint: str | Path | None,
    progress: Callable[[int], None] | None,
) -> Iterator[Epoch]:
    module = copy.deepcopy(model.module).float()
    policy = LanguageModel(module, model.tokenizer, source=model.source, threads=model.threads)
    chosen = _chosen(policy, training)
    names, parameters = list(chosen), list(chosen.values())
    optimiser = torch.optim.AdamW(parameters, lr=training.lr, weight_decay=training.weight_decay, fused=True)
    steps = math.ceil(len(kept) / training.batch_size)
    identity = _identity(objective, training, forget, retain, kept)
    losses: list[float] = []
    done = 0
    if checkpoint is not None and Path(checkpoint).exists():
        losses = resume(checkpoint, identity, names, parameters, optimiser)["losses"]
        done = len(losses) // steps
        if progress is not None:
            progress(len(losses))
        yield Epoch(done, policy, list(losses))
    for epoch in range(done, training.epochs):
        with threads.suiting(policy), torch.inference_mode(False), torch.enable_grad():
            noise = torch.Generator().manual_seed(hash_of(training.seed, epoch, 1))
            for first, second in _batches(objective, forget, retain, training, kept, epoch):
                rate = 0.5 * (1 + math.cos(math.pi * len(losses) / (steps * training.epochs)))
                for group in optimiser.param_groups:
                    group["lr"] = training.lr * (rate if training.cosine else 1.0)
                losses.append(_step(model, policy, objective, first, second, training, noise))
                _finish(parameters, optimiser, training, noise)
                if progress is not None:
                    progress(1)
        if checkpoint is not None:
            keep(checkpoint, identity, names, parameters, optimiser, {"losses": losses})
        yield Epoch(epoch + 1, policy, list(losses))
    module.requires_grad_(False)


def _step(
    model: LanguageModel,
    policy: LanguageModel,
    objective: Objective,
    forget: list[Example],
    retain: list[Example],
    training: Training,
    noise: torch.Generator,
) -> float:
    """Gradients of one step; its loss in the mean."""
    total = 0.0
    parts = min(training.accumulate, max(len(forget), len(retain)))
    for part in range(parts):
        rows = [
            Rows.of(data[part::parts], model.pad_id, model.device) if data[part::parts] else None
            for data in (forget, retain)
        ]
        loss = objective.loss(policy.module, model.module, rows[0], rows[1], noise) / parts
        loss.backward()
        total += float(loss.detach())
    return total


def _finish(
    parameters: list[nn.Parameter], optimiser: torch.optim.Optimizer, training: Training, generator: torch.Generator
) -> None:
    if training.clip:
        nn.utils.clip_grad_norm_(parameters, training.clip)
    if training.noise:
        for parameter in parameters:
            if parameter.grad is not None:
                drawn = torch.randn(parameter.shape, generator=generator).to(parameter.grad)
                parameter.grad.add_(drawn, alpha=training.noise)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def _batches(
    objective: Objective, forget: list[Example], retain: list[Example], training: Training, kept: set[int], epoch: int
) -> Iterator[tuple[list[Example], list[Example]]]:
    """Forget and retain examples of every step of an epoch."""
    driving = forget if objective.forgets else retain
    order = np.random.default_rng([training.seed, epoch]).permutation(len(driving))
    order = order[np.isin(order, list(kept))]
    beside = np.random.default_rng([training.seed, epoch, 1]).permutation(len(retain)) if retain else np.zeros(0)
    for start in range(0, len(order), training.batch_size):
        first = [driving[i] for i in order[start : start + training.batch_size]]
        if not objective.forgets:
            yield [], first
        elif not objective.retains:
            yield first, []
        else:
            yield first, [retain[int(beside[(start + i) % len(beside)])] for i in range(len(first))]


def _chosen(policy: LanguageModel, training: Training) -> dict[str, nn.Parameter]:
    module = policy.module
    module.requires_grad_(False)
    kind, blocks = training.trainable, policy.layout.blocks
    if kind == "lora":
        chosen = add_lora(module, blocks, training.rank, training.seed, scale=training.alpha / training.rank)
    elif kind == "all":
        chosen = dict(module.named_parameters())
    elif kind.startswith("last:") and kind[5:].isdigit() and 1 <= int(kind[5:]) <= len(policy.blocks):
        prefixes = tuple(f"{blocks}.{i}." for i in range(len(policy.blocks) - int(kind[5:]), len(policy.blocks)))
        chosen = {name: p for name, p in module.named_parameters() if name.startswith(prefixes)}
    else:
        raise InputError(f"trainable {kind!r}: expected all, lora or last:1 to last:{len(policy.blocks)}")
    for parameter in chosen.values():
        parameter.requires_grad_(True)
    return chosen


def _objective(objective: Objective | str) -> Objective:
    if isinstance(objective, Objective):
        return objective
    if objective not in METHODS:
        raise InputError(f"method {objective!r}: expected one of {', '.join(METHODS)}")
    return METHODS[objective]


def _identity(
    objective: Objective, training: Training, forget: list[Example], retain: list[Example], kept: set[int]
) -> str:
    data = [[asdict(one) for one in part] for part in (forget, retain)]
    settings = {item.name: getattr(training, item.name) for item in fields(training) if item.name != "accumulate"}
    text = json.dumps([asdict(objective), settings, data, sorted(kept)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_of(*numbers: int) -> int:
    """One seed of several."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _log_p(logits: Tensor, targets: Tensor) -> Tensor:
    return -nn.functional.cross_entropy(logits, targets, reduction="none")


def _kl(before: Tensor, logits: Tensor) -> Tensor:
    """KL(reference ‖ model), summed over the vocabulary, mean over tokens."""
    a, b = before.log_softmax(-1), logits.log_softmax(-1)
    return (a.exp() * (a - b)).sum(-1).mean()
