"""The edit: rows of the MLPs' gate projections that lie along a direction are moved along it, and put back exactly."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.files import written_folder
from touchstone.language import threads

if TYPE_CHECKING:
    from types import TracebackType

    from touchstone.language.model import LanguageModel

__all__ = ["FRACTION", "GateEdit", "default_k", "gate_weights", "random_like", "rank_rows"]

FRACTION = 800 / (64 * 27_648)
"""Share of gate rows that is edited: the paper's 800 of the rows of a model of the Qwen2.5-32B shape."""
_FEWEST_ROWS = 16
# Numbers held at once in float32 while rows are ranked.
_HELD = 2**25


def gate_weights(model: LanguageModel) -> list[Tensor]:
    """The gate projection of every block, each [d_ff, d].

    Raises
    ------
    InputError
        If the model's MLPs have no gate.
    """
    if model.layout.gate is None:
        raise InputError(
            f"model {model.source}: its MLPs have no gate projection to edit; steer the residual stream instead "
            "(ResidualSteering, or --how residual)"
        )
    found = [block.get_submodule(model.layout.gate).weight for block in model.blocks]
    return [weight for weight in found if isinstance(weight, Tensor)]


def default_k(model: LanguageModel) -> int:
    """The paper's share of the model's gate rows, at least 16."""
    return max(_FEWEST_ROWS, round(FRACTION * sum(len(weight) for weight in gate_weights(model))))


def rank_rows(
    weights: list[Tensor], direction: Tensor, k: int, rank: Literal["global", "layer"] = "global"
) -> tuple[Tensor, Tensor, Tensor]:
    """The k rows with the largest cosine with a direction; equal cosines in the order of (layer, row).

    One product a layer and a running list of the best; no loop over rows.

    Parameters
    ----------
    weights : one matrix [rows, d] a layer.
    direction : [d].
    k : rows in all.
    rank : ``"global"`` takes the best anywhere, which are mostly in late layers; ``"layer"`` as many in each layer,
        give or take one.

    Returns
    -------
    Layers, rows and cosines, each [k], best first.
    """
    device = weights[0].device
    unit = direction.float().to(device) / direction.float().norm()
    best = torch.empty(0, device=device)
    where = torch.empty((0, 2), dtype=torch.long, device=device)
    shares = [k // len(weights) + (i < k % len(weights)) for i in range(len(weights))]
    for layer, weight in enumerate(weights):
        cosines = _cosines(weight.detach(), unit.to(weight.device)).to(device)
        full = rank == "global" and len(best) == k
        # A row that only equals the worst of a full list comes after it.
        rows = (cosines > best[-1]).nonzero().squeeze(-1) if full else torch.arange(len(cosines), device=device)
        found = torch.stack([torch.full_like(rows, layer), rows], dim=1)
        if rank == "layer":
            order = cosines.sort(stable=True, descending=True).indices[: shares[layer]]
            best, where = torch.cat([best, cosines[order]]), torch.cat([where, found[order]])
            continue
        values, places = torch.cat([best, cosines[rows]]), torch.cat([where, found])
        order = values.sort(stable=True, descending=True).indices[:k]
        best, where = values[order], places[order]
    order = best.sort(stable=True, descending=True).indices
    return where[order, 0], where[order, 1], best[order]


def _cosines(weight: Tensor, unit: Tensor) -> Tensor:
    """Cosine of each row with a unit vector; 0 for a row of zeros."""
    pieces = []
    for part in weight.split(max(1, _HELD // weight.shape[1])):
        wide = part.float()
        pieces.append((wide @ unit) / wide.norm(dim=1).clamp(min=1e-30))
    return torch.cat(pieces)


def random_like(direction: np.ndarray, seed: int) -> np.ndarray:
    """A random direction of the same length, float32 [d]: what an edit must be compared with."""
    drawn = np.random.default_rng(seed).standard_normal(len(direction))
    found: np.ndarray = (drawn * (np.linalg.norm(direction) / np.linalg.norm(drawn))).astype(np.float32)
    return found


class GateEdit:
    """Raise or lower what a direction stands for by an edit of weights that can be undone exactly.

    The ``k`` gate rows w that lie closest to the direction m (by cosine) become w + α m to raise it, w − |α| m to
    lower it. A gate row along m opens when m is present in what the MLP reads; adding α m opens it more.

    Parameters
    ----------
    model : the model to edit.
    direction : m, [d], such as :attr:`AwarenessProbe.direction_`.
    k : rows to edit; ``None`` for the paper's share of all rows, at least 16.
    strength : ‖Δw‖ in units of the mean norm of the edited rows. Unlike α it means the same in every layer and model.
    sign : +1 to raise, −1 to lower.
    alpha : α itself, as the paper gives it, in place of ``strength``.
    rank : ``"global"`` or ``"layer"``, see :func:`rank_rows`.
    select : direction by which rows are chosen, if another than ``direction``; for the control that moves the same
        rows along a random direction.

    Attributes
    ----------
    layers, rows, cosines : what is edited, [k], best first.
    alpha : signed factor of m.
    strength : the relative strength that goes with it, 0 or more.
    layer_histogram : int64 [blocks], edited rows in each block.

    Raises
    ------
    InputError
        If the model's MLPs have no gate, the direction does not fit, ``k`` is not between 1 and the number of rows,
        or a number is not finite.

    Notes
    -----
    Weights of half precision are edited in float32 and cast back; a warning tells when over 5 % of their entries were
    too coarse to change.

    >>> with GateEdit(model, probe.direction_, strength=1.0, sign=-1):
    ...     model.generate(prompts)
    """

    def __init__(
        self,
        model: LanguageModel,
        direction: np.ndarray | Tensor,
        *,
        k: int | None = None,
        strength: float = 1.0,
        sign: int = 1,
        alpha: float | None = None,
        rank: Literal["global", "layer"] = "global",
        select: np.ndarray | Tensor | None = None,
    ) -> None:
        if sign not in (1, -1):
            raise InputError(f"sign {sign}: expected 1 to raise or -1 to lower")
        if not (math.isfinite(strength) and strength >= 0):
            raise InputError(f"strength {strength}: expected a finite number of 0 or more")
        if rank not in ("global", "layer"):
            raise InputError(f"rank {rank!r}: expected 'global' or 'layer'")
        self.model = model
        self._weights = gate_weights(model)
        self.direction = _direction(direction, model)
        total = sum(len(weight) for weight in self._weights)
        self.k = default_k(model) if k is None else int(k)
        if not 1 <= self.k <= total:
            raise InputError(f"k {k}: expected 1 to {total}, the number of gate rows")
        chosen = self.direction if select is None else _direction(select, model)
        with threads.suiting(model):
            self.layers, self.rows, self.cosines = rank_rows(self._weights, chosen, self.k, rank)
        self._by_layer = {
            layer: self.rows[self.layers == layer].to(self._weights[layer].device)
            for layer in sorted(set(self.layers.tolist()))
        }
        norms = torch.cat(
            [self._weights[i].detach()[rows].float().norm(dim=1).cpu() for i, rows in self._by_layer.items()]
        )
        self.row_norm = float(norms.mean())
        length = float(self.direction.norm())
        if alpha is None:
            self.strength = float(strength)
            self.alpha = sign * strength * self.row_norm / length
        else:
            if not math.isfinite(alpha):
                raise InputError(f"alpha {alpha}: expected a finite number")
            # The paper's formula for lowering takes away |α|, whatever its sign.
            self.alpha = float(alpha) if sign == 1 else -abs(float(alpha))
            self.strength = abs(self.alpha) * length / self.row_norm
        self._saved: dict[int, Tensor] | None = None
        self._sums: dict[int, str] = {}

    @property
    def applied(self) -> bool:
        """Whether the model's weights are edited by it now."""
        return self._saved is not None

    @property
    def layer_histogram(self) -> np.ndarray:
        """Edited rows in each block."""
        found: np.ndarray = np.bincount(self.layers.cpu().numpy(), minlength=len(self._weights))
        return found

    def apply(self) -> GateEdit:
        """Edit the weights; raises :class:`InputError` if they are edited already."""
        if self.applied:
            raise InputError("edit: applied already; undo it first")
        saved: dict[int, Tensor] = {}
        still, entries = 0, 0
        with torch.no_grad():
            for layer, rows in self._by_layer.items():
                weight = self._weights[layer]
                before = weight[rows].clone()
                move = self.alpha * self.direction.to(weight.device)
                after = (before.float() + move).to(weight.dtype)
                weight.index_copy_(0, rows, after)
                saved[layer] = before
                still += int(((after == before) & (move != 0)).sum())
                entries += int((move != 0).sum()) * len(rows)
        self._saved = saved
        self._sums = {layer: self._sum(layer) for layer in saved}
        if entries and still > 0.05 * entries:
            warnings.warn(
                f"edit: {still / entries:.0%} of the entries did not change: {self._weights[0].dtype} is too coarse "
                "for this strength",
                stacklevel=2,
            )
        return self

    def undo(self, *, force: bool = False) -> None:
        """Put the rows back as they were, bit by bit.

        Parameters
        ----------
        force : also if the rows were changed by something else in the meantime, which is then lost.

        Raises
        ------
        InputError
            If the edit is not applied, or the rows are not as it left them.
        """
        if self._saved is None:
            raise InputError("edit: not applied; nothing to undo")
        changed = [layer for layer in self._saved if self._sum(layer) != self._sums[layer]]
        if changed and not force:
            raise InputError(
                f"edit: the rows of block {changed[0]} have changed since; undo later edits first, or pass force=True"
            )
        with torch.no_grad():
            for layer, before in self._saved.items():
                self._weights[layer].index_copy_(0, self._by_layer[layer], before)
        self._saved, self._sums = None, {}

    def __enter__(self) -> GateEdit:
        return self if self.applied else self.apply()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.applied:
            self.undo()

    def export_lora(self, folder: str | Path, *, replace: bool = False, base: str | None = None) -> Path:
        """Write the edit as a LoRA adapter of rank 1 in PEFT's layout, for servers that load adapters.

        ΔW = e mᵀ for each block, with e = α at its edited rows and 0 elsewhere: ``lora_A`` is m, ``lora_B`` is e.
        Blocks without edited rows are left out.

        Parameters
        ----------
        folder : where to write ``adapter_config.json`` and ``adapter_model.safetensors``.
        replace : whether a folder that is there is replaced.
        base : ``base_model_name_or_path`` of the adapter; the model's source if ``None``.
        """
        from safetensors.torch import save_file

        gate = self.model.layout.gate
        assert gate is not None
        tensors: dict[str, Tensor] = {}
        for layer, rows in self._by_layer.items():
            at_rows = torch.zeros((len(self._weights[layer]), 1))
            at_rows[rows.cpu()] = self.alpha
            name = f"base_model.model.{self.model.layout.blocks}.{layer}.{gate}"
            tensors[f"{name}.lora_A.weight"] = self.direction.cpu().unsqueeze(0).clone()
            tensors[f"{name}.lora_B.weight"] = at_rows
        with written_folder(folder, replace=replace) as new:
            save_file(tensors, new / "adapter_model.safetensors", metadata={"format": "pt"})
            (new / "adapter_config.json").write_text(json.dumps(self._config(base), indent=2) + "\n", encoding="utf-8")
        return Path(folder)

    def save_model(self, folder: str | Path, *, replace: bool = False) -> Path:
        """Write the edited model with its tokenizer as safetensors, readable with ``from_pretrained``."""
        from transformers.utils import logging

        bars = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        applied = self.applied
        try:
            if not applied:
                self.apply()
            with written_folder(folder, replace=replace) as new:
                self.model.module.save_pretrained(new)
                self.model.tokenizer.save_pretrained(new)
                (new / "awareness_edit.json").write_text(json.dumps(self.record(), indent=2) + "\n", encoding="utf-8")
        finally:
            if not applied and self.applied:
                self.undo()
            if bars:
                logging.enable_progress_bar()
        return Path(folder)

    def record(self) -> dict[str, Any]:
        """What was edited and how far, as JSON holds it."""
        return {
            "model": self.model.source,
            "k": self.k,
            "alpha": self.alpha,
            "strength": self.strength,
            "row_norm": self.row_norm,
            "direction_norm": float(self.direction.norm()),
            "layer_histogram": self.layer_histogram.tolist(),
            "rows": [[int(layer), int(row)] for layer, row in zip(self.layers, self.rows, strict=True)],
        }

    def _config(self, base: str | None) -> dict[str, Any]:
        gate = self.model.layout.gate
        assert gate is not None
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base or self.model.source,
            "inference_mode": True,
            "r": 1,
            "lora_alpha": 1,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "target_modules": [gate.split(".")[-1]],
            "layers_to_transform": [int(layer) for layer in self._by_layer],
            "layers_pattern": self.model.layout.blocks.split(".")[-1],
            "use_rslora": False,
            "use_dora": False,
            "modules_to_save": None,
            "init_lora_weights": True,
        }

    def _sum(self, layer: int) -> str:
        rows = self._weights[layer].detach()[self._by_layer[layer]]
        # Bytes, so that every bit counts and every type has them.
        return hashlib.sha256(rows.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _direction(direction: np.ndarray | Tensor, model: LanguageModel) -> Tensor:
    found = torch.as_tensor(np.asarray(direction) if not isinstance(direction, Tensor) else direction.detach())
    found = found.float().cpu()
    if found.shape != (model.width,):
        raise InputError(f"direction: shape {tuple(found.shape)}; model {model.source} is {model.width} wide")
    if not bool(found.isfinite().all()) or not float(found.norm()) > 0:
        raise InputError("direction: expected finite numbers, not all zero")
    return found
