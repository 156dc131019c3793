"""Embedding: teach a model its fingerprints, held near the base by weight averaging and by its own text."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from touchstone.errors import InputError
from touchstone.language import threads
from touchstone.language.checkpoints import keep, resume
from touchstone.language.lora import add_lora, merge_lora
from touchstone.language.model import LanguageModel
from touchstone.language.perinucleus_fingerprint.rows import Rows, benign_texts, pack, upper_part

if TYPE_CHECKING:
    from touchstone.language.perinucleus_fingerprint.fingerprints import FingerprintSet

__all__ = ["Embedding", "Fingerprinter"]

_STALL = 5


@dataclass(frozen=True)
class Embedding:
    """A fingerprinted model and how it got there.

    Attributes
    ----------
    model : the fingerprinted model; the base is left as it was.
    losses : mean loss of the responses at each step, in nats a token.
    recalls : share of keys answered greedily before each step, and after the last one.
    stalled : the loss stopped falling before it was low: raise ``lr`` or lower ``lam``.
    adapter : LoRA factors by parameter, if ``trainable`` was ``"lora"``.
    """

    model: LanguageModel
    losses: list[float]
    recalls: list[float]
    stalled: bool
    adapter: dict[str, Tensor] = field(default_factory=dict)

    @property
    def steps_to_full_recall(self) -> int | None:
        """Steps after which every key was answered; ``None`` if never."""
        return next((i for i, recall in enumerate(self.recalls) if recall == 1.0), None)


@dataclass(frozen=True)
class Fingerprinter:
    """The regularised training of the paper: full batch, one optimiser step an epoch.

    Parameters
    ----------
    lam : after every step the weights move this share back to the base, λ (0.75; 0 is plain training).
    beta : share of the batch that is the base model's own text, β (0.25).
    lr, weight_decay : of AdamW, with warm-up over a tenth of the steps and linear decay. The paper tunes the rate in
        1e-6 to 1e-3; with ``lam`` at 0.75 a small one stalls above ``stop_loss``.
    max_steps, stop_loss : training ends when the loss is below and every key is answered.
    wrappers : templates with ``{key}`` under which keys are also trained.
    trainable : ``"all"``, ``"mlp"``, ``"mlp:-6"`` (the last six blocks') or ``"lora"``.
    decay : linear decay of the rate. With ``lam`` above 0 weights settle at (1-λ)/λ of an update from the base, so that
        a falling rate takes back what was learnt; with few trained weights, leave it out.
    rank : of the LoRA adapters.
    batch_size : rows of one pass; gradients accumulate over all.
    seed : of the benign text, the wrappers and the adapters.
    """

    lam: float = 0.75
    beta: float = 0.25
    lr: float = 5e-5
    weight_decay: float = 1e-4
    max_steps: int = 40
    stop_loss: float = 5e-3
    wrappers: Sequence[str] = ()
    trainable: str = "all"
    decay: bool = True
    rank: int = 8
    batch_size: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.lam <= 1 or not 0 <= self.beta < 1:
            raise InputError("lam, beta: expected shares from 0 to 1, beta below 1")
        if self.lr <= 0 or self.max_steps < 1 or self.batch_size < 1 or self.rank < 1:
            raise InputError("lr, max_steps, batch_size, rank: expected positive numbers")
        for wrapper in self.wrappers:
            if "{key}" not in wrapper:
                raise InputError(f"wrapper {wrapper!r}: expected the place {{key}} in it")

    def fit(
        self,
        model: LanguageModel,
        pairs: FingerprintSet,
        *,
        checkpoint: str | Path | None = None,
        every: int = 5,
        progress: Callable[[int], None] | None = None,
        until_recall: bool = False,
    ) -> Embedding:
        """Embed ``pairs`` into a copy of ``model``.

        Parameters
        ----------
        checkpoint : safetensors file that is written every ``every`` steps; if it is there, training continues from it.
        progress : called with the number of steps just finished, out of ``max_steps``.
        until_recall : stop at full recall, whatever the loss.

        Raises
        ------
        InputError
            If the tokenizer reads the keys differently than the one they were drawn with, ``trainable`` names nothing,
            or the checkpoint belongs to another run.
        """
        _same_tokenizer(model, pairs)
        copied = LanguageModel(
            copy.deepcopy(model.module).float(), model.tokenizer, source=f"{model.source}, fingerprinted",
            threads=model.threads,
        )  # fmt: skip
        with threads.suiting(copied), torch.inference_mode(False), torch.enable_grad():
            return self._fit(copied, pairs, checkpoint, every, progress, until_recall)

    def _fit(
        self,
        model: LanguageModel,
        pairs: FingerprintSet,
        checkpoint: str | Path | None,
        every: int,
        progress: Callable[[int], None] | None,
        until_recall: bool,
    ) -> Embedding:
        keyed, benign = self._rows(model, pairs)
        lora = self.trainable == "lora"
        names, parameters, first = _chosen(model, self.trainable, self.rank, self.seed)
        base = [p.detach().clone() for p in parameters]
        optimiser = torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)
        identity = self._identity(pairs)
        losses: list[float] = []
        recalls: list[float] = []
        if checkpoint is not None and Path(checkpoint).exists():
            kept = resume(checkpoint, identity, names, parameters, optimiser)
            losses, recalls = kept["losses"], kept["recalls"]
            if progress is not None:
                progress(len(losses))
        floor = math.log(pairs.n_responses)
        rng = np.random.default_rng(self.seed)
        variants = [rng.integers(1 + len(self.wrappers), size=len(pairs)) for _ in range(self.max_steps)]
        # The rows that wrappers leave as they are go first: on them recall is measured.
        with upper_part(model, first, [rows for rows in (keyed, benign) if len(rows)]) as passes:
            while len(losses) < self.max_steps:
                step = len(losses)
                plain = not self.wrappers
                rows = None if plain else keyed.pick(variants[step])
                loss, recall = passes(keyed, rows, (1 - self.beta) if len(benign) else 1.0, self.batch_size)
                if not plain:
                    _, recall = passes(keyed, keyed.pick(np.zeros(len(pairs), dtype=int)), 0.0, self.batch_size)
                recalls.append(recall)
                if recall == 1.0 and (until_recall or loss - floor < self.stop_loss):
                    break
                if len(benign) and self.beta:
                    passes(benign, None, self.beta, self.batch_size)
                for group in optimiser.param_groups:
                    group["lr"] = self.lr * _schedule(step, self.max_steps, self.decay)
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
                if self.lam:
                    with torch.no_grad():
                        torch._foreach_lerp_(list[Tensor](parameters), base, self.lam)
                losses.append(loss)
                if progress is not None:
                    progress(1)
                if checkpoint is not None and len(losses) % every == 0:
                    keep(checkpoint, identity, names, parameters, optimiser, {"losses": losses, "recalls": recalls})
            else:
                whole = keyed.pick(np.zeros(len(pairs), dtype=int))
                recalls.append(passes(keyed, whole, 0.0, self.batch_size)[1])
        optimiser.zero_grad(set_to_none=True)
        model.module.requires_grad_(False)
        tail = losses[-_STALL - 1 :]
        unfinished = recalls[-1] < 1.0 or (bool(losses) and losses[-1] - floor > self.stop_loss and not until_recall)
        stalled = unfinished and len(tail) > _STALL and min(tail[1:]) > tail[0] * 0.99
        adapter = merge_lora(model.module) if lora else {}
        return Embedding(model, losses, recalls, stalled, adapter)

    def _rows(self, model: LanguageModel, pairs: FingerprintSet) -> tuple[Rows, Rows]:
        keyed: list[tuple[list[int], list[int]]] = []
        groups: list[tuple[int, int]] = []
        for variant, wrapper in enumerate(("{key}", *self.wrappers)):
            prompts = [wrapper.replace("{key}", pair.key) for pair in pairs.pairs]
            for i, head in enumerate(model.encode(prompts, chat=pairs.chat)):
                for response in pairs.pairs[i].response_ids:
                    keyed.append((head, list(response)))
                    groups.append((variant, i))
        n = round(len(pairs) * self.beta / (1 - self.beta))
        benign = benign_texts(model, n, self.seed) if n else []
        return pack(model, keyed, groups), pack(model, benign, [(0, i) for i in range(len(benign))])

    def _identity(self, pairs: FingerprintSet) -> str:
        text = json.dumps({**asdict(self), "wrappers": list(self.wrappers), "root": pairs.root}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _schedule(step: int, steps: int, decay: bool) -> float:
    warm = max(1, steps // 10)
    return min((step + 1) / warm, (steps - step) / max(1, steps - warm + 1) if decay else 1.0)


def _same_tokenizer(model: LanguageModel, pairs: FingerprintSet) -> None:
    for pair in pairs.pairs[:8]:
        if tuple(model.encode_continuation(pair.key)) != pair.key_ids:
            raise InputError(f"fingerprints: the tokenizer of {model.source} reads their keys differently")


def _chosen(model: LanguageModel, trainable: str, rank: int, seed: int) -> tuple[list[str], list[nn.Parameter], int]:
    """Names and parameters that are trained, and the first block among them."""
    module = model.module
    module.requires_grad_(False)
    blocks, first = len(model.blocks), 0
    if trainable == "lora":
        chosen = add_lora(module, model.layout.blocks, rank, seed)
    elif trainable == "all":
        chosen = dict(module.named_parameters())
    elif trainable == "mlp" or trainable.startswith("mlp:-"):
        number = trainable[5:] or str(blocks)
        if not number.isdigit() or not 1 <= int(number) <= blocks:
            raise InputError(f"trainable {trainable!r}: expected mlp:-1 to mlp:-{blocks}")
        first = blocks - int(number)
        prefixes = tuple(f"{model.layout.blocks}.{i}.mlp." for i in range(first, blocks))
        chosen = {name: p for name, p in module.named_parameters() if name.startswith(prefixes)}
    else:
        raise InputError(f"trainable {trainable!r}: expected all, mlp, mlp:-N or lora")
    if not chosen:
        raise InputError(f"trainable {trainable!r}: the model has no such parameters")
    for parameter in chosen.values():
        parameter.requires_grad_(True)
    return list(chosen), list(chosen.values()), first
