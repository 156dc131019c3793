"""SteeringPlane: the two axes found from two lists of prompts, with what is known about them; saved as safetensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language.angular_steering import geometry
from touchstone.language.angular_steering.geometry import Second, Select
from touchstone.language.angular_steering.operators import Form, Graded
from touchstone.language.layout import Site

if TYPE_CHECKING:
    from touchstone.language.angular_steering.fold import Folded
    from touchstone.language.angular_steering.steer import Degrees, Steered
    from touchstone.language.model import LanguageModel, Prompt

__all__ = ["Layers", "Space", "SteeringPlane"]

Space = Literal["post_norm", "pre_norm"]
Layers = Literal["all", "discriminative"] | Sequence[int | str | Site]


@dataclass(frozen=True, eq=False)
class SteeringPlane:
    """A plane in activation space whose angle is a dial for one behaviour.

    0° is along the feature (the behaviour of the positive prompts), about 180° away from it. The plane is used at the
    outputs of both pre-norms of every block, the same two vectors everywhere.

    Attributes
    ----------
    b1, b2 : orthonormal axes, float32 [d].
    candidates : the direction found at each point, float32 [M, d], not of unit length.
    sites : the M points, in the order of the forward pass.
    diagnostics : one row a point: ``site``, ``norm`` (length of the candidate), ``kept`` (false where it is zero),
        ``mean_cosine`` (with the other candidates), ``positive_mean``, ``positive_spread``, ``negative_mean``,
        ``negative_spread`` (mean and standard deviation of h·b1 by class, in activation units), ``positive_cosine``,
        ``negative_cosine`` (mean direction of the class along b1) and ``activation_norm`` (mean length of h).
    chosen : index of the point that b1 was taken from; ``None`` if it is a mean or random.
    explained_variance : share of the candidates' variance on their first principal component.
    cos_b1_pc0 : cosine of b1 with that component; its sign is arbitrary, so it is given as a magnitude.
    model, architecture : what it was fitted on.
    select, second, space : how, see :meth:`fit`.
    version : version of touchstone.
    """

    b1: Tensor
    b2: Tensor
    candidates: Tensor
    sites: tuple[Site, ...]
    diagnostics: pd.DataFrame
    chosen: int | None
    explained_variance: float
    cos_b1_pc0: float
    model: str
    architecture: str
    select: str
    second: str
    space: str
    version: str

    # Making one

    @classmethod
    def fit(
        cls,
        model: LanguageModel,
        positive: Sequence[Prompt],
        negative: Sequence[Prompt],
        *,
        select: Select | str = "max_sim",
        second: Second | str | Sequence[float] | np.ndarray | Tensor = "pca",
        space: Space | str = "post_norm",
        sites: Sequence[Site | str] | None = None,
        system: str | None = None,
        batch_size: int = 32,
        seed: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> SteeringPlane:
        """Find the plane in which the model's reading of two lists of prompts differs.

        The activation of the last prompt token (of the chat template's opening of the reply) is taken at each of the
        two pre-norms of each block. Prompts are padded on the left whatever the tokenizer's own setting is.

        Parameters
        ----------
        positive, negative : prompts that differ in the behaviour; 0° will be along ``positive``.
        select : how b1 is chosen among the points' candidates: ``max_sim`` (the paper's), ``max_norm``, ``mean`` or
            ``random`` (a control).
        second : how b2 is chosen: ``pca`` (the paper's), ``random`` (a control) or a vector of the model's width.
        space : where the candidates are measured. ``post_norm`` is where the plane is used; ``pre_norm`` is the
            residual stream before the norm's gain, as in the official code (arXiv 2510.26243).
        sites : where it is measured and used; both pre-norms of every block (the paper's) if not given.
        system : system message for all prompts.
        batch_size : most prompts in a batch.
        seed : of the random controls.
        progress : called with the number of prompts just read.

        Raises
        ------
        InputError
            If a list is empty, the activations do not differ, or they span no plane.
        """
        for name, prompts in (("positive", positive), ("negative", negative)):
            if isinstance(prompts, str) or len(prompts) == 0:
                raise InputError(f"{name}: expected a list of at least one prompt")
        if space not in ("post_norm", "pre_norm"):
            raise InputError(f"space {space!r}: expected 'post_norm' or 'pre_norm'")
        places = [model.as_site(site) for site in sites or model.sites("attention_input", "mlp_input")]
        if space == "pre_norm" and any(site.kind not in ("attention_input", "mlp_input") for site in places):
            raise InputError("space 'pre_norm': expected sites at norms (attention_input, mlp_input)")
        before, after = [], []
        for prompts in (positive, negative):
            inputs, outputs = _read(model, prompts, places, space == "pre_norm", system, batch_size, progress)
            before.append(inputs)
            after.append(outputs)
        return cls.from_activations(
            *after,
            sites=places,
            measured=None if space == "post_norm" else (before[0], before[1]),
            select=select,
            second=second,
            seed=seed,
            model=model.source,
            architecture=_architecture(model),
        )

    @classmethod
    def from_activations(
        cls,
        positive: np.ndarray | Tensor,
        negative: np.ndarray | Tensor,
        *,
        sites: Sequence[Site] | None = None,
        measured: tuple[np.ndarray | Tensor, np.ndarray | Tensor] | None = None,
        select: Select | str = "max_sim",
        second: Second | str | Sequence[float] | np.ndarray | Tensor = "pca",
        seed: int = 0,
        model: str = "activations",
        architecture: str = "",
    ) -> SteeringPlane:
        """The plane from activations that were read before.

        Parameters
        ----------
        positive, negative : activations of the two classes where the plane will be used, [M, samples, d].
        sites : the M points; attention's and MLP's input of each block in turn if not given.
        measured : activations to take the candidates from, if they were measured elsewhere (before the norms).
        select, second, seed : see :meth:`fit`.
        """
        used = [_array("positive", positive), _array("negative", negative)]
        source = used if measured is None else [_array("measured", part) for part in measured]
        if len({part.shape[::2] for part in (*used, *source)}) != 1:
            raise InputError("positive, negative: expected the same number of points and the same width")
        candidates = geometry.candidates_of(*source)
        rng = np.random.default_rng(seed)
        b1, chosen = geometry.feature_axis(candidates, select, rng)
        axis = second if isinstance(second, str) else np.asarray(_numbers(second), dtype=np.float64)
        b2 = geometry.second_axis(candidates, b1, axis, rng)
        components, share = geometry.principal_components(candidates)
        places = tuple(sites) if sites is not None else _pairs(len(candidates))
        if len(places) != len(candidates):
            raise InputError(f"sites: {len(places)} for {len(candidates)} points")
        return cls(
            b1=torch.from_numpy(b1).float(),
            b2=torch.from_numpy(b2).float(),
            candidates=torch.from_numpy(candidates).float(),
            sites=places,
            diagnostics=_diagnose(places, candidates, b1, *used),
            chosen=chosen,
            explained_variance=float(share[0]),
            cos_b1_pc0=float(abs(components[0] @ b1)) if share[0] > 0 else 0.0,
            model=model,
            architecture=architecture,
            select=select,
            second=second if isinstance(second, str) else "vector",
            space="post_norm" if measured is None else "pre_norm",
            version=_version(),
        )

    def control(self, kind: Literal["plane", "second"] = "plane", *, seed: int = 0) -> SteeringPlane:
        """A baseline at the same points: both axes random, or the true b1 with a random second axis."""
        rng = np.random.default_rng(seed)
        if kind not in ("plane", "second"):
            raise InputError(f"kind {kind!r}: expected 'plane' or 'second'")
        b1 = geometry.random_unit(self.width, rng) if kind == "plane" else self.b1.double().numpy()
        b2 = geometry.random_unit(self.width, rng, orthogonal_to=b1)
        select = "random" if kind == "plane" else self.select
        first, second = torch.from_numpy(b1).float(), torch.from_numpy(b2).float()
        return replace(self, b1=first, b2=second, select=select, second="random")

    @property
    def width(self) -> int:
        """Size of the activations it turns."""
        return len(self.b1)

    def points(self, layers: Layers = "all") -> tuple[Site, ...]:
        """The sites that ``layers`` means.

        Parameters
        ----------
        layers : ``"all"``; ``"discriminative"``, where the class means lie on opposite sides along b1 (the layer
            selection of arXiv 2601.19375); or a list of block numbers (both norms of the block), sites or site names.
        """
        if isinstance(layers, str):
            if layers == "all":
                return self.sites
            if layers != "discriminative":
                raise InputError(f"layers {layers!r}: expected 'all', 'discriminative' or a list")
            opposite = self.diagnostics["positive_cosine"] * self.diagnostics["negative_cosine"] < 0
            found = tuple(site for site, here in zip(self.sites, opposite, strict=True) if here)
            if not found:
                raise InputError("layers 'discriminative': the classes lie on the same side at every point")
            return found
        wanted: set[Site] = set()
        for item in layers:
            blocks = {site for site in self.sites if site.block == item} if isinstance(item, int) else set()
            site = None if isinstance(item, int) else Site.parse(item) if isinstance(item, str) else Site(*item)
            if not blocks and site not in self.sites:
                raise InputError(f"layers: {item!r} is not a block or site of this plane")
            wanted |= blocks or {site}  # type: ignore[arg-type]
        if not wanted:
            raise InputError("layers: expected at least one")
        return tuple(site for site in self.sites if site in wanted)

    def check_fits(self, model: LanguageModel, *, warn: bool = True) -> None:
        """Raise :class:`InputError` if the plane cannot be used on ``model``; warn if it was fitted on another one."""
        if model.width != self.width:
            raise InputError(
                f"plane of width {self.width} (fitted on {self.model}): model {model.source} is {model.width} wide"
            )
        for site in self.sites:
            model.as_site(site)
        if warn and model.source != self.model:
            warnings.warn(f"the plane was fitted on {self.model}, not on {model.source}", stacklevel=3)

    # Using it

    def attach(
        self,
        model: LanguageModel,
        degrees: Degrees,
        *,
        adaptive: bool | Graded = True,
        form: Form = "set",
        layers: Layers = "all",
        prompt_only: bool = False,
    ) -> Steered:
        """Steer ``model`` until :meth:`Steered.detach`; see
        :class:`~touchstone.language.angular_steering.steer.Steered`.
        """
        from touchstone.language.angular_steering.steer import Steered

        return Steered(self, model, degrees, adaptive=adaptive, form=form, layers=layers, prompt_only=prompt_only)

    def steer(
        self,
        model: LanguageModel,
        degrees: Degrees,
        *,
        adaptive: bool | Graded = True,
        form: Form = "set",
        layers: Layers = "all",
        prompt_only: bool = False,
    ) -> AbstractContextManager[Steered]:
        """Steer ``model`` while a ``with`` block runs. Arguments as in :meth:`attach`."""
        return self.attach(model, degrees, adaptive=adaptive, form=form, layers=layers, prompt_only=prompt_only)

    def fold(self, model: LanguageModel, degrees: float, *, layers: Layers = "all") -> Folded:
        """Write the rotation into the weights; see :class:`~touchstone.language.angular_steering.fold.Folded`."""
        from touchstone.language.angular_steering.fold import Folded

        return Folded(self, model, degrees, layers=layers)

    # Keeping it

    def save(self, path: str | Path) -> Path:
        """Write one ``.safetensors`` file with a JSON header; it appears whole or not at all."""
        from touchstone.language.angular_steering.storage import save

        return save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, model: LanguageModel | None = None) -> SteeringPlane:
        """Read a file written by :meth:`save`.

        Parameters
        ----------
        path : the file.
        model : if given, it is checked that the plane fits: another width is an error, another name a warning.

        Raises
        ------
        InputError
            If the file is missing, damaged or not a steering plane, or does not fit ``model``.
        """
        from touchstone.language.angular_steering.storage import load

        plane = load(Path(path))
        if model is not None:
            plane.check_fits(model)
        return plane


def _read(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    sites: Sequence[Site],
    inputs: bool,
    system: str | None,
    batch_size: int,
    progress: Callable[[int], None] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Last-token activations before (if ``inputs``) and after the norms, each [M, prompts, d]."""
    before: dict[Site, Tensor] = {}
    with ExitStack() as stack:
        if inputs:
            for site in sites:
                before[site] = torch.zeros((len(prompts), model.width))
                hook = partial(_record, model, before[site])
                stack.callback(model.site_module(site).register_forward_pre_hook(hook).remove)
        after = model.activations(prompts, sites, system=system, batch_size=batch_size, progress=progress)
    outputs = torch.stack([after[site] for site in sites]).numpy()
    return (torch.stack([before[site] for site in sites]).numpy() if inputs else outputs[:0]), outputs


def _record(model: LanguageModel, place: Tensor, module: Any, arguments: tuple[Any, ...]) -> None:
    """Keep what a norm reads at each prompt's last token."""
    batch = model.batch
    assert batch is not None
    assert batch.rows is not None
    # Padding is on the left, so that the last column is every prompt's last token.
    place[batch.rows.cpu()] = arguments[0][:, -1].float().cpu()


def _diagnose(
    sites: Sequence[Site], candidates: np.ndarray, b1: np.ndarray, positive: np.ndarray, negative: np.ndarray
) -> pd.DataFrame:
    columns: dict[str, Any] = {
        "site": [str(site) for site in sites],
        "norm": np.linalg.norm(candidates, axis=1),
        "kept": geometry.kept_points(candidates),
        "mean_cosine": geometry.mean_cosines(candidates),
    }
    for name, activations in (("positive", positive), ("negative", negative)):
        along = activations @ b1
        columns[f"{name}_mean"] = along.mean(axis=1)
        columns[f"{name}_spread"] = along.std(axis=1)
        lengths = np.linalg.norm(activations, axis=2)
        columns[f"{name}_cosine"] = np.divide(along, lengths, out=np.zeros_like(along), where=lengths > 0).mean(axis=1)
    columns["activation_norm"] = np.linalg.norm(np.concatenate([positive, negative], axis=1), axis=2).mean(axis=1)
    return pd.DataFrame(columns)


def _pairs(count: int) -> tuple[Site, ...]:
    kinds: tuple[Any, Any] = ("attention_input", "mlp_input")
    return tuple(Site(kinds[i % 2], i // 2) for i in range(count))


def _numbers(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def _array(name: str, values: np.ndarray | Tensor) -> np.ndarray:
    array = np.asarray(_numbers(values), dtype=np.float64)
    if array.ndim != 3 or 0 in array.shape:
        raise InputError(
            f"{name}: activations of shape {array.shape}; expected [points, samples, width], none of them 0"
        )
    if not np.isfinite(array).all():
        raise InputError(f"{name}: activations are not all finite")
    return array


def _architecture(model: LanguageModel) -> str:
    return str(getattr(model.module.config, "model_type", type(model.module).__name__))


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("touchstone-ml")
    except PackageNotFoundError:
        return "unknown"
