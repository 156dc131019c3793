"""The paper's reward model: a language model with a one-logit head, trained through LoRA."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from touchstone.errors import InputError, MissingExtraError
from touchstone.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    import torch

    from touchstone.language.model import LanguageModel

__all__ = ["LmHead", "Training"]

_SCHEMA = "touchstone.frm-lm/1"


@dataclass(frozen=True)
class Training:
    """How the head and its adapter are trained.

    Rate and adapter are for small models; the paper trains all weights of a 1B model at 2e-5, batch 128, two epochs.

    Attributes
    ----------
    epochs, rate, batch : of AdamW with betas (0.9, 0.95).
    rank, alpha, dropout : of LoRA on queries and values.
    longest : tokens of a text that are read, from its end.
    """

    epochs: int = 2
    rate: float = 2e-4
    batch: int = 32
    rank: int = 8
    alpha: int = 16
    dropout: float = 0.05
    longest: int = 4096

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "rank", "alpha", "longest"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)}: expected 1 or more")
        if not self.rate > 0 or not 0 <= self.dropout < 1:
            raise InputError(f"rate {self.rate}, dropout {self.dropout}: expected above 0, and in [0, 1)")


class LmHead:
    """A copy of a model's body with an adapter and a linear head on the last token's state.

    Parameters
    ----------
    encoder : the model; it stays as it is.
    training : see :class:`Training`.
    seed : of the adapter, the head and the order of texts.
    """

    def __init__(self, encoder: LanguageModel, training: Training | None = None, *, seed: int = 0) -> None:
        import torch

        self.encoder, self.training, self.seed = encoder, training or Training(), seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._body = self._adapted()
            self._head = torch.nn.Linear(encoder.width, 1)
            torch.nn.init.normal_(self._head.weight, std=0.02)
        self._head.to(encoder.device)

    def _adapted(self) -> Any:
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError:
            raise MissingExtraError("Training a language model as reward model", "training") from None
        # The body without its language-model head: the head of one logit stands in its place.
        body: Any = copy.deepcopy(self.encoder.module.base_model)
        for parameter in body.parameters():
            parameter.requires_grad_(False)
        names = {name.rsplit(".", 1)[-1] for name, _ in body.named_modules()}
        targets = [name for name in ("q_proj", "v_proj") if name in names] or ["c_attn"]
        chosen = self.training
        config = LoraConfig(r=chosen.rank, lora_alpha=chosen.alpha, lora_dropout=chosen.dropout, target_modules=targets)
        return inject_adapter_in_model(config, body)

    def _learnt(self) -> dict[str, torch.Tensor]:
        found = {f"body.{name}": p for name, p in self._body.named_parameters() if p.requires_grad}
        return found | {f"head.{name}": p for name, p in self._head.named_parameters()}

    def fit(
        self,
        texts: Sequence[str],
        labels: NDArray[np.int64],
        sample_weight: NDArray[np.float64] | None = None,
        *,
        checkpoint: str | Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> LmHead:
        """Train by binary cross-entropy.

        Parameters
        ----------
        checkpoint : file that is written after every epoch and from which training goes on if it is there.
        progress : called with the number of texts just learnt from.
        """
        import torch

        from touchstone.language import threads

        ids = [self._ids(text) for text in texts]
        y = torch.tensor(labels, dtype=torch.float32)
        weights = torch.ones(len(y)) if sample_weight is None else torch.tensor(sample_weight, dtype=torch.float32)
        learnt = self._learnt()
        optimiser = torch.optim.AdamW(learnt.values(), lr=self.training.rate, betas=(0.9, 0.95))
        start = 0 if checkpoint is None else self._resumed(Path(checkpoint), optimiser)
        with threads.suiting(self.encoder), torch.random.fork_rng(devices=[]):
            for epoch in range(start, self.training.epochs):
                # Each epoch has its own seed, so that one that goes on is the one that never stopped.
                torch.manual_seed(1_000_003 * self.seed + epoch)
                self._epoch(ids, y, weights, optimiser, progress)
                if checkpoint is not None:
                    self._kept(Path(checkpoint), optimiser, epoch + 1)
        self._body.eval()
        return self

    def _epoch(
        self,
        ids: list[list[int]],
        y: torch.Tensor,
        weights: torch.Tensor,
        optimiser: torch.optim.Optimizer,
        progress: Callable[[int], None] | None,
    ) -> None:
        import torch

        self._body.train()
        order = torch.randperm(len(ids)).tolist()
        for at in range(0, len(order), self.training.batch):
            rows = order[at : at + self.training.batch]
            logits = self._logits([ids[i] for i in rows]).cpu()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y[rows], weight=weights[rows])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            if progress is not None:
                progress(len(rows))

    def probability(self, texts: Sequence[str], *, budget: int = 4096) -> NDArray[np.float64]:
        """σ(f) of each text; texts of like length share a batch of at most ``budget`` tokens."""
        import torch

        from touchstone.language import threads
        from touchstone.language.batching import batches

        ids = [self._ids(text) for text in texts]
        found = np.zeros(len(ids))
        self._body.eval()
        with torch.inference_mode(), threads.suiting(self.encoder):
            for rows in batches([len(row) for row in ids], len(ids) or 1, budget=budget):
                found[rows] = torch.sigmoid(self._logits([ids[i] for i in rows])).double().cpu().numpy()
        return found

    def _ids(self, text: str) -> list[int]:
        [ids] = self.encoder.encode([text], chat=False)
        return ids[-self.training.longest :]

    def _logits(self, rows: list[list[int]]) -> torch.Tensor:
        from touchstone.language.batching import pad_left

        ids, mask = pad_left(rows, self.encoder.pad_id, self.encoder.device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        states = self._body(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)[0][:, -1]
        logits: torch.Tensor = self._head(states.float()).squeeze(-1)
        return logits

    # State

    def _kept(self, path: Path, optimiser: torch.optim.Optimizer, epoch: int) -> None:
        learnt = self._learnt()
        arrays = {name: p.detach().cpu().numpy() for name, p in learnt.items()}
        for name, p in learnt.items():
            arrays |= {f"optimiser.{key}.{name}": v.cpu().numpy() for key, v in optimiser.state[p].items()}
        write_tensors(path, arrays, self._record() | {"epoch": epoch})

    def _resumed(self, path: Path, optimiser: torch.optim.Optimizer) -> int:
        import torch

        if not path.exists():
            return 0
        arrays, record = read_tensors(path, _SCHEMA, "checkpoint")
        if {**record, "epoch": 0} != self._record() | {"epoch": 0}:
            raise InputError(f"checkpoint {path}: of another model, training or seed; choose another or remove it")
        self._set(arrays)
        for name, p in self._learnt().items():
            optimiser.state[p] = {
                key: torch.from_numpy(arrays[f"optimiser.{key}.{name}"].copy())
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
        return int(record["epoch"])

    def _record(self) -> dict[str, Any]:
        return {
            "schema": _SCHEMA,
            "encoder": self.encoder.source,
            "training": asdict(self.training),
            "seed": self.seed,
            "width": self.encoder.width,
        }

    def _set(self, arrays: dict[str, np.ndarray]) -> None:
        import torch

        with torch.no_grad():
            for name, p in self._learnt().items():
                if name not in arrays or arrays[name].shape != tuple(p.shape):
                    raise InputError(f"reward model: no weights of shape {tuple(p.shape)} for {name}")
                p.copy_(torch.from_numpy(arrays[name].copy()))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Adapter and head, and the record from which :meth:`restore` makes the same."""
        return {name: p.detach().cpu().numpy() for name, p in self._learnt().items()}, self._record()

    @classmethod
    def restore(cls, arrays: dict[str, np.ndarray], record: dict[str, Any], encoder: LanguageModel) -> LmHead:
        """See :meth:`state`; ``encoder`` is the model it was trained on."""
        if record["width"] != encoder.width:
            raise InputError(f"encoder: width {encoder.width}; this reward model was trained on {record['width']}")
        made = cls(encoder, Training(**record["training"]), seed=int(record["seed"]))
        made._set(arrays)
        made._body.eval()
        return made
