"""Reading activations at named sites, keeping only the positions that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from touchstone.errors import InputError
from touchstone.language.batching import Batch, batches, common_head, pad_left, positions_of, read_head, shared_length
from touchstone.language.layout import Site

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["Positions", "read"]

Positions = Literal["last", "all", "mean"] | slice | Sequence[tuple[int, int]]

# Most tokens of a batch, padding included.
_BUDGET = 4096


def read(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    sites: Sequence[Site],
    *,
    positions: Positions,
    batch_size: int,
    finished: Callable[[int], None] | None = None,
) -> dict[Site, Any]:
    """See :meth:`LanguageModel.activations`; ``prompts`` are token ids."""
    spans = _spans(positions, [len(ids) for ids in prompts])
    whole = positions == "all"
    pieces: dict[Site, list[Any]] = {site: [None] * len(prompts) for site in sites}
    head = common_head(model, prompts, min((start for start, _ in spans), default=0))
    for rows in batches([len(ids) for ids in prompts], batch_size, budget=_BUDGET):
        batch = [prompts[i] for i in rows]
        # A head that several share is read once, as long as nothing of it is asked for.
        shared = shared_length(model, batch, min(spans[i][0] for i in rows), head)
        ids, mask = pad_left([row[shared:] for row in batch], model.pad_id, model.device)
        # Spans count from a prompt's first token; padding comes before it.
        ends = torch.tensor([spans[i] for i in rows], device=model.device) - shared
        ends = ends + (mask.shape[1] - mask.sum(-1, keepdim=True))
        keep = partial(_keep, ends=ends, whole=whole)
        cache = read_head(model, batch[0][:shared], len(rows), head) if shared else None
        seen = _forward(model, cache, shared, ids, mask, sites, rows, keep)
        for site in sites:
            for k, i in enumerate(rows):
                pieces[site][i] = seen[site][k]
        if finished is not None:
            finished(len(rows))
    if whole:
        return dict(pieces)
    return {site: torch.stack(rows) if rows else torch.empty((0, model.width)) for site, rows in pieces.items()}


def _keep(hidden: Tensor, ends: Tensor, whole: bool) -> Any:
    """Of activations [B, T, width] what is asked for, in float32 on the CPU."""
    if whole:
        return [hidden[k, int(start) : int(end)].float().cpu() for k, (start, end) in enumerate(ends)]
    length = ends[:, 1] - ends[:, 0]
    if bool((length == 1).all()):
        return hidden[torch.arange(len(hidden), device=hidden.device), ends[:, 0]].float().cpu()
    place = torch.arange(hidden.shape[1], device=hidden.device)
    inside = (place >= ends[:, :1]) & (place < ends[:, 1:])
    weights = inside.to(torch.float32) / length.unsqueeze(-1)
    return torch.einsum("btd,bt->bd", hidden.float(), weights).cpu()


def _forward(
    model: LanguageModel,
    cache: Any,
    shared: int,
    ids: Tensor,
    mask: Tensor,
    sites: Sequence[Site],
    rows: list[int],
    keep: Callable[[Tensor], Any],
) -> dict[Site, Any]:
    seen: dict[Site, Any] = {}
    extra: dict[str, Any] = {"use_cache": False}
    if shared:
        extra = {model.cache_argument: cache, "use_cache": True}
        mask = torch.cat([torch.ones((len(rows), shared), dtype=mask.dtype, device=mask.device), mask], dim=1)
    places = positions_of(mask)[:, -ids.shape[1] :]

    def recorder(site: Site) -> Callable[[nn.Module, Any, Any], None]:
        def record(module: nn.Module, arguments: Any, output: Any) -> None:
            seen[site] = keep(output[0] if isinstance(output, tuple) else output)

        return record

    with ExitStack() as stack:
        for site in sites:
            stack.callback(model.site_module(site).register_forward_hook(recorder(site)).remove)
        indices = torch.tensor(rows, dtype=torch.long, device=model.device)
        stack.enter_context(model.reading(Batch(indices, prompt=True)))
        model.module.base_model(input_ids=ids, attention_mask=mask, position_ids=places, **extra)
    return seen


def _spans(positions: Positions, lengths: list[int]) -> list[tuple[int, int]]:
    """First token and the one after the last, for each prompt."""
    if positions == "last":
        return [(n - 1, n) for n in lengths]
    if positions in ("all", "mean"):
        return [(0, n) for n in lengths]
    if isinstance(positions, str):
        raise InputError(f"positions {positions!r}: expected 'last', 'all', 'mean', a slice or spans")
    if isinstance(positions, slice):
        if positions.step not in (None, 1):
            raise InputError(f"positions {positions}: a slice with a step is not a span")
        spans = [positions.indices(n)[:2] for n in lengths]
    else:
        spans = [(int(start), int(end)) for start, end in positions]
        if len(spans) != len(lengths):
            raise InputError(f"positions: {len(spans)} spans for {len(lengths)} prompts")
    for i, ((start, end), n) in enumerate(zip(spans, lengths, strict=True)):
        if not 0 <= start < end <= n:
            raise InputError(f"positions: span ({start}, {end}) of prompt {i} is empty or outside its {n} tokens")
    return spans
