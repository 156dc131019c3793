"""Protecting a model: masked weights for the untrusted side, secrets for the trusted one, a forward pass of both."""

from __future__ import annotations

import copy
import json
import os
import secrets as system_secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from touchstone.errors import InputError
from touchstone.files import read_text, write_text
from touchstone.language.loro import layers as _layers
from touchstone.language.loro.enclave import InProcess, TEEBackend, TEESecrets
from touchstone.language.loro.factors import KEY_BYTES, Distribution, MaskKind, Pool, bytes_per_layer
from touchstone.language.loro.layers import Layer
from touchstone.language.loro.pads import Pad, PadStore
from touchstone.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LoROConfig", "Policy", "Protected", "protect"]

Policy = Literal["weights_only", "full"]
_SCHEMA = "touchstone.loro/1"


@dataclass(frozen=True)
class LoROConfig:
    """How weights are masked.

    Attributes
    ----------
    rank : r of a pair of factors; the official scripts use 8 and 24.
    pool : factors shared by all layers of a width.
    terms : pairs that a layer's mask combines; its rank is at most ``terms`` × ``rank``.
    mask : ``"lowrank"``, the paper's, or ``"fwht"``: random signs and three fast Hadamard transforms, of full rank,
        with no factors to keep and no gap in the spectrum, at O(n log n) a token on the trusted side.
    mask_ratio : standard deviation of a mask over that of the weights it hides. The official code draws factors on
        [0, 0.1) whatever the weights are, which puts most of a mask into one direction.
    distribution : ``"normal"``, or the official code's ``"uniform"``.
    targets : see :func:`touchstone.language.loro.layers.find`.
    policy : ``"weights_only"`` leaves inputs and outputs of layers in plain sight, from which masks can be computed;
        for tests of accuracy and speed. ``"full"`` hides inputs by one-time pads, and queries, keys and values by
        permutations inside each head; outputs stay on the trusted side.
    seed : of the secret key; ``None`` takes it from the system. A seed is for tests: who knows it knows the key.
    strict : refuse weights of half precision, in which the subtraction of a mask costs accuracy; otherwise warn.
    """

    rank: int = 24
    pool: int = 4
    terms: int = 2
    mask: MaskKind = "lowrank"
    mask_ratio: float = 1.0
    distribution: Distribution = "normal"
    targets: str | tuple[str, ...] = "all-linear"
    policy: Policy = "weights_only"
    seed: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if not self.mask_ratio > 0:
            raise InputError(f"mask_ratio {self.mask_ratio}: expected a number above 0")
        if self.mask not in ("lowrank", "fwht"):
            raise InputError(f"mask {self.mask!r}: expected 'lowrank' or 'fwht'")
        if self.policy not in ("weights_only", "full"):
            raise InputError(f"policy {self.policy!r}: expected 'weights_only' or 'full'")


def protect(module: nn.Module, config: LoROConfig | None = None) -> Protected:
    """Mask a copy of the model's linear layers; the model itself stays as it is.

    Parameters
    ----------
    module : any module with linear layers, such as ``LanguageModel.module``.
    config : see :class:`LoROConfig`.

    Raises
    ------
    InputError
        If no layer matches, the rank is above a width, or weights are half precision and ``strict`` is set.

    Warns
    -----
    UserWarning
        If a seed is given, or weights are half precision.
    """
    chosen = config or LoROConfig()
    found = _layers.find(module, chosen.targets)
    _look_at_precision(module, found, chosen.strict)
    hidden = copy.deepcopy(module)
    shapes = {layer.name: (layer.n, layer.m) for layer in found}
    pool = Pool(
        _key(chosen.seed),
        [n for n, _ in shapes.values()],
        [m for _, m in shapes.values()],
        rank=chosen.rank,
        size=chosen.pool,
        terms=chosen.terms,
        distribution=chosen.distribution,
    )
    scales = {}
    with torch.no_grad():
        for layer in found:
            weight = layer.weight(hidden.get_submodule(layer.name))
            plain = pool.spread(layer.n, layer.m, pool.choice(layer.name)) if chosen.mask == "lowrank" else 1.0
            scales[layer.name] = chosen.mask_ratio * float(weight.float().std()) / plain
        tee = TEESecrets(pool, scales, shapes, chosen.mask)
        for layer in found:
            weight = layer.weight(hidden.get_submodule(layer.name))
            weight.add_(torch.from_numpy(tee.mask(layer.name)).to(weight))
    return Protected(hidden, tee, found, chosen)


def _key(seed: int | None) -> bytes:
    if seed is None:
        return system_secrets.token_bytes(KEY_BYTES)
    warnings.warn("seed: a key that follows from a seed is for tests; leave it out to protect anything", stacklevel=3)
    return np.random.default_rng(seed).bytes(KEY_BYTES)


def _look_at_precision(module: nn.Module, layers: Sequence[Layer], strict: bool) -> None:
    half = [
        one.name
        for one in layers
        if one.weight(module.get_submodule(one.name)).dtype in (torch.float16, torch.bfloat16)
    ]
    if not half:
        return
    message = f"{half[0]}: half precision, in which taking a mask away again costs accuracy; use float32"
    if strict:
        raise InputError(message)
    warnings.warn(message, stacklevel=3)


class Protected:
    """A masked model together with the trusted side that corrects it.

    Attributes
    ----------
    ree : the masked model, which the untrusted side runs; while corrections are on, its outputs are the plain model's.
    tee : the secrets.
    layers : what is masked.
    config : see :class:`LoROConfig`.
    backend : who computes corrections.
    pads : pads of each layer under the policy ``"full"``.
    """

    def __init__(
        self,
        ree: nn.Module,
        tee: TEESecrets,
        layers: Sequence[Layer],
        config: LoROConfig,
        *,
        backend: TEEBackend | None = None,
    ) -> None:
        self.ree, self.tee, self.layers, self.config = ree, tee, tuple(layers), config
        self.backend: TEEBackend = backend or InProcess(tee)
        self.pads = PadStore()
        self._corrects = True
        self.seen: dict[str, list[Tensor]] | None = None
        self._rows: tuple[Tensor, Tensor] | None = None
        self._hidden: dict[str, tuple[Tensor, Pad]] = {}
        for layer in self.layers:
            part = ree.get_submodule(layer.name)
            part.register_forward_pre_hook(self._before(layer))
            part.register_forward_hook(self._after(layer))
        if config.policy == "full":
            from touchstone.language.loro.attention import hide_heads

            hide_heads(ree, tee.pool.key)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The plain model's output."""
        return self.ree(*arguments, **named)

    def _before(self, layer: Layer) -> Callable[..., Any]:
        def hook(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            if not self._corrects or self.config.policy != "full":
                return None
            rows = layer.rows(arguments[0])
            flat = rows.reshape(-1, layer.n)
            if not self.pads.left(layer.name):
                # In a deployment pads are made ahead of time; here, when they are needed, and each is used once.
                self.pads.refill(layer.name, layer.weight(module).detach().float().cpu(), tokens=len(flat), count=1)
            pad = self.pads.take(layer.name)
            self._hidden[layer.name] = (flat, pad)
            padded = pad.hide(flat)
            if self.seen is not None:
                self.seen.setdefault(layer.name, []).append(padded.detach().cpu())
            return (layer.back(padded.reshape(rows.shape)), *arguments[1:])

        return hook

    def _after(self, layer: Layer) -> Callable[..., Any]:
        def hook(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            if not self._corrects:
                return None
            rows = layer.rows(output)
            flat = rows.reshape(-1, layer.m)
            if self.config.policy == "full":
                plain, pad = self._hidden.pop(layer.name)
                flat = pad.taken_from(flat)
            else:
                given = layer.rows(arguments[0])
                plain = given if given.ndim == 2 else self._same(given, layer.n)
                if self.seen is not None:
                    self.seen.setdefault(layer.name, []).append(plain.detach().cpu())
            correction = self.backend.correct(layer.name, plain)
            # The layer's output is fresh, so that it may be changed in place, unless gradients are wanted.
            flat = flat - correction if flat.requires_grad else flat.sub_(correction)
            return layer.back(flat.reshape(rows.shape))

        return hook

    def _same(self, given: Tensor, width: int) -> Tensor:
        """``given`` as [tokens, width]; one and the same tensor for layers that read the same input."""
        if self._rows is None or self._rows[0] is not given:
            self._rows = (given, given.reshape(-1, width))
        return self._rows[1]

    @contextmanager
    def ree_only(self) -> Iterator[nn.Module]:
        """The masked model by itself, as who steals it has it."""
        self._corrects = False
        try:
            yield self.ree
        finally:
            self._corrects = True

    @contextmanager
    def through(self, backend: TEEBackend) -> Iterator[Protected]:
        """Corrections by another backend while the block runs."""
        before, self.backend = self.backend, backend
        try:
            yield self
        finally:
            self.backend = before

    @contextmanager
    def watched(self) -> Iterator[dict[str, list[Tensor]]]:
        """Inputs of each layer as the untrusted side sees them while the block runs."""
        self.seen = {}
        try:
            yield self.seen
        finally:
            self.seen = None

    def report(self) -> pd.DataFrame:
        """One row a layer: widths, rank of the mask, relative operations of the correction, mask over weights."""
        import pandas as pd

        pool = self.tee.pool
        rows = []
        for layer in self.layers:
            used = len(set(self.tee.choice(layer.name).left))
            work = pool.rank * (used * layer.n + pool.terms * layer.m) / (layer.n * layer.m)
            rows.append((layer.name, layer.n, layer.m, min(pool.rank * pool.terms, layer.n, layer.m), work))
        return pd.DataFrame(rows, columns=["layer", "n", "m", "rank", "relative_flops"])

    def summary(self) -> dict[str, Any]:
        """Bytes, ranks and what is not protected; what is printed when a model is protected."""
        from touchstone.language.loro.spectrum import predicted_error

        shapes = dict(self.tee.shapes)
        rank = self.tee.pool.rank * self.tee.pool.terms
        errors = [predicted_error(n, m, min(rank, n, m)) for n, m in shapes.values()]
        return {
            "layers": len(shapes),
            "policy": self.config.policy,
            "secret_bytes": self.tee.pool.bytes,
            "secret_bytes_per_layer_factors": bytes_per_layer(shapes, self.tee.pool.rank),
            "masked_parameters": sum(n * m for n, m in shapes.values()),
            "plain_parameters": _layers.unprotected(self.ree, self.layers),
            "predicted_error_of_spectral_attack": [min(errors), max(errors)],
        }

    def save(self, folder: str | Path) -> Path:
        """Write ``ree.safetensors`` and ``config.json`` for the untrusted side, ``secrets.safetensors`` for the trusted
        one, which only its owner may read.

        Raises
        ------
        InputError
            If the folder is there already, or cannot be written.
        """
        from touchstone.files import written_folder

        pool = self.tee.pool
        record = {
            "schema": _SCHEMA,
            "shapes": {k: list(v) for k, v in self.tee.shapes.items()},
            "scales": dict(self.tee.scales),
        }
        public = asdict(self.config) | {"seed": None}
        with written_folder(folder) as new:
            state = {name: value.detach().cpu().numpy() for name, value in self.ree.state_dict().items()}
            write_tensors(new / "ree.safetensors", state, {"schema": _SCHEMA})
            write_text(new / "config.json", json.dumps(record | {"config": public}, indent=2) + "\n")
            key = np.frombuffer(pool.key, dtype=np.uint8)
            write_tensors(new / "secrets.safetensors", {"key": key.copy()}, {"schema": _SCHEMA})
            os.chmod(new / "secrets.safetensors", 0o600)
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path, module: nn.Module, *, backend: TEEBackend | None = None) -> Protected:
        """Read what :meth:`save` wrote into ``module``, a model of the same architecture.

        Raises
        ------
        InputError
            If a file is missing or damaged, or the architecture is another.
        """
        place = Path(folder)
        try:
            record = json.loads(read_text(place / "config.json", "protected model"))
            if record["schema"] != _SCHEMA:
                raise InputError(f"protected model {place}: not of schema {_SCHEMA!r}")
            options = record["config"]
            targets = options["targets"]
            config = LoROConfig(**(options | {"targets": targets if isinstance(targets, str) else tuple(targets)}))
            shapes = {str(k): (int(n), int(m)) for k, (n, m) in record["shapes"].items()}
            scales = {str(k): float(v) for k, v in record["scales"].items()}
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"protected model {place}: damaged ({error})") from None
        state, _ = read_tensors(place / "ree.safetensors", _SCHEMA, "protected model")
        keys, _ = read_tensors(place / "secrets.safetensors", _SCHEMA, "secrets")
        hidden = copy.deepcopy(module)
        try:
            hidden.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state.items()})
        except RuntimeError as error:
            raise InputError(f"protected model {place}: of another architecture ({str(error)[:120]})") from None
        found = [layer for layer in _layers.find(hidden, config.targets) if layer.name in shapes]
        pool = Pool(
            bytes(keys["key"].tobytes()), [n for n, _ in shapes.values()], [m for _, m in shapes.values()],
            rank=config.rank, size=config.pool, terms=config.terms, distribution=config.distribution,
        )  # fmt: skip
        return cls(hidden, TEESecrets(pool, scales, shapes, config.mask), found, config, backend=backend)
