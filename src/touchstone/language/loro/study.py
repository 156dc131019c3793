"""The study: is the protected model the plain one, what can be stolen from it, and what does it cost?"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from touchstone.bootstrap import clustered
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Figure, Finding, Measurement, Table
from touchstone.language.loro import figures
from touchstone.language.loro.costs import SHAPES, layer_shapes, memory, timed
from touchstone.language.loro.spectrum import predicted_error, spectral_attack
from touchstone.language.loro.study_stealing import StealSize, stealing

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["study"]

_SLOWDOWN = 50.0


@dataclass(frozen=True)
class Size:
    """Sizes of the parts: sentences and tokens on the model, widths of the spectral law, models that are timed."""

    sentences: int
    tokens: int
    law: tuple[int, ...]
    timed: tuple[str, ...]
    steal: StealSize


_SIZES = {
    "smoke": Size(3, 4, (128,), ("135M",), StealSize(seeds=1, copies=2, pretrain=2, tune=2, epochs=4, runs=1)),
    "cpu": Size(20, 64, (576, 1024), ("135M", "3B", "8B"), StealSize(seeds=5)),
    "gpu": Size(100, 256, (576, 1024, 4096), ("135M", "3B", "8B"), StealSize(seeds=10)),
}

_SENTENCES = (
    "The ferry leaves at nine and returns before dark.",
    "Water boils at a lower temperature on a mountain.",
    "She repaired the bicycle with a piece of wire.",
    "The library closes early on the last Friday of the month.",
    "Bread needs flour, water, salt and time.",
)


def study(
    scale: Literal["smoke", "cpu", "gpu"],
    run: Run,
    *,
    model: str | Path | LanguageModel = "default",
    dtype: str = "float32",
) -> Evidence:
    """Re-measure what LoRO claims, and what its summaries do not say.

    Parameters
    ----------
    scale : ``"smoke"`` (seconds), ``"cpu"`` (minutes) or ``"gpu"``.
    run : seed, device, engine and progress.
    model, dtype : the model that is protected, see :meth:`LanguageModel.load`.

    Raises
    ------
    InputError
        If the scale is unknown, or the model cannot be read.
    """
    from touchstone.language.model import LanguageModel

    if scale not in _SIZES:
        raise InputError(f"scale {scale!r}: expected 'smoke', 'cpu' or 'gpu'")
    size = _SIZES[scale]
    subject = model if isinstance(model, LanguageModel) else LanguageModel.load(model, device=run.device, dtype=dtype)
    findings, tables = _exactness(subject, size, run)
    stolen, more, drawn = stealing(size.steal, run)
    law, law_table, law_figure = _law(size, run)
    cost, cost_tables = _costs(size, run)
    return run.evidence(
        f"LoRO, re-measured ({subject.source})",
        "loro",
        "study",
        [*findings, *stolen, law, *cost],
        tables=[*tables, *more, law_table, *cost_tables],
        figures=[*drawn, law_figure],
        scale=scale,
        device=str(subject.device),
    )


def _exactness(subject: LanguageModel, size: Size, run: Run) -> tuple[list[Finding], list[Table]]:
    kinds = [("lowrank", "weights_only"), ("fwht", "weights_only"), ("lowrank", "full")]
    kinds = kinds if size.sentences > 3 else kinds[:1]
    rows = run.map(f"protecting {subject.source}", partial(_protected, subject, size, run.seed), kinds)
    frame = pd.DataFrame(rows)
    bare, padded = frame[frame["policy"] == "weights_only"], frame[frame["policy"] == "full"]
    gap = Measurement("largest difference of a logit", float(bare["largest_gap"].max()), n=int(bare["logits"].sum()))
    same = Measurement.rate("greedy tokens that are the same", int(frame["same"].sum()), int(frame["tokens"].sum()))
    worse = Measurement("perplexity of the masked model over the plain one's", float(frame["worse"].min()), "times")
    findings = [
        Finding.held_to(
            "exact-logits",
            "The protected model's logits are the plain model's, with masks of low and of full rank.",
            gap,
            "<= 0.002",
        ),
        Finding(
            "exact-tokens",
            "Its greedy replies are the plain model's, token by token.",
            "holds" if same.value == 1 else "fails",
            same,
        ),
        Finding.held_to(
            "useless-alone",
            "Without the trusted side the masked model's perplexity is at least a hundred times the plain one's.",
            worse,
            ">= 100",
        ),
    ]
    if len(padded):
        wide = Measurement(
            "largest difference of a logit", float(padded["largest_gap"].max()), n=int(padded["logits"].sum())
        )
        statement = "They still are when every input is padded and every head shuffled."
        findings.append(Finding.held_to("exact-logits-padded", statement, wide, "<= 0.002", gap))
    return findings, [Table("exactness", f"{subject.source}, protected", frame)]


def _protected(subject: LanguageModel, size: Size, seed: int, kind: tuple[str, str]) -> dict[str, Any]:
    import torch

    from touchstone.language.loro.protection import LoROConfig, protect
    from touchstone.language.model import LanguageModel

    mask, policy = kind
    with warnings.catch_warnings():
        # The study repeats itself; what it protects is no secret.
        warnings.filterwarnings("ignore", message="seed")
        hidden = protect(subject.module, LoROConfig(seed=seed, mask=mask, policy=policy))  # type: ignore[arg-type]
    texts = [f"{_SENTENCES[i % len(_SENTENCES)]} {i}" for i in range(size.sentences)]
    ids = [torch.tensor([subject.encode_continuation(text)], device=subject.device) for text in texts]
    gaps: list[float] = []
    plain_loss: list[float] = []
    lost_loss: list[float] = []
    with torch.inference_mode():
        for one in ids:
            plain, ours = subject.module(one).logits.float(), hidden(one).logits.float()
            gaps.append(float((plain - ours).abs().max()))
            with hidden.ree_only() as stolen:
                lost = stolen(one).logits.float()
            for logits, losses in ((plain, plain_loss), (lost, lost_loss)):
                losses.append(float(torch.nn.functional.cross_entropy(logits[0, :-1], one[0, 1:])))
    wrapped = LanguageModel(hidden.ree, subject.tokenizer, source="protected", threads=subject.threads)
    first = mask == "lowrank" and policy == "weights_only"
    length = size.tokens if first else min(size.tokens, 16)
    said = [model.generate(texts[:2], max_new_tokens=length) for model in (subject, wrapped)]
    tokens = [[subject.encode_continuation(text) for text in part] for part in said]
    same = sum(a == b for one, other in zip(*tokens, strict=True) for a, b in zip(one, other, strict=False))
    summary = hidden.summary()
    return {
        "mask": mask,
        "policy": policy,
        "largest_gap": max(gaps),
        "logits": sum(one.numel() for one in ids) * int(subject.module.config.vocab_size),
        "same": same,
        "tokens": sum(max(len(a), len(b)) for a, b in zip(*tokens, strict=True)),
        "worse": float(np.exp(np.minimum(60.0, np.mean(lost_loss) - np.mean(plain_loss)))),
        "secret_bytes": summary["secret_bytes"] if mask == "lowrank" else 32,
        "masked_parameters": summary["masked_parameters"],
    }


def _law(size: Size, run: Run) -> tuple[Finding, Table, Figure]:
    units = [(width, rank) for width in size.law for rank in (8, 24, 64) if 2 * rank < width]
    frame = pd.DataFrame(run.map("taking ranks away", partial(_one_law, run.seed), units))
    ratio = clustered(
        "measured over predicted error", (frame["measured"] / frame["predicted"]).to_numpy(), seed=run.seed
    )
    inside = bool(((frame["measured"] / frame["predicted"]).between(0.95, 1.08)).all())
    finding = Finding(
        "spectral-law",
        "An attacker who takes the mask's rank away finds the update with the relative error √(r/n + r/m − r²/nm).",
        "holds" if inside else "fails",
        ratio,
        limit=">= 0.95",
    )
    return finding, Table("law", "The spectral attack on random updates", frame), figures.law(frame)


def _one_law(seed: int, unit: tuple[int, int]) -> dict[str, float]:
    width, rank = unit
    rng = np.random.default_rng([seed, width, rank])
    public = 0.05 * rng.standard_normal((width, width))
    update = 1e-3 * rng.standard_normal((width, width))
    mask = rng.standard_normal((width, rank)) @ rng.standard_normal((rank, width))
    mask *= public.std() / mask.std()
    found, taken = spectral_attack(public + update + mask, public)
    error = float(np.linalg.norm(found - public - update) / np.linalg.norm(update))
    return {
        "width": width,
        "rank": rank,
        "rank_found": taken,
        "measured": error,
        "predicted": predicted_error(width, width, rank),
    }


def _costs(size: Size, run: Run) -> tuple[list[Finding], list[Table]]:
    rows = pd.DataFrame(run.map("timing products", _one_cost, list(size.timed)))
    kept = pd.DataFrame([{"model": name, **memory(layer_shapes(SHAPES[name]))} for name in SHAPES])
    kept["share"] = kept["pooled"] / kept["per_layer"]
    worst = Measurement("correction over plain products, both at once", float(rows["overlapped"].max()), "times")
    apart = Measurement("all products inside over LoRO", float(rows["all_inside_over_loro"].min()), "times")
    seven = kept[kept["model"] == "7B"].to_dict("records")[0]
    share = Measurement("pooled over per-layer factors, 7B", float(seven["share"]))
    size_mb = Measurement("pooled secrets of a 7B model", float(seven["pooled"]) / 1e6, "MB")
    own_mb = Measurement("per-layer factors", float(seven["per_layer"]) / 1e6, "MB")
    return [
        Finding.held_to(
            "latency",
            "With the correction beside the plain products, a block takes at most 1.5 times as long.",
            worst,
            "<= 1.5",
        ),
        Finding.held_to(
            "latency-over-full",
            f"That is 20 times faster or more than all products in an enclave {_SLOWDOWN:g} times slower (assumed).",
            apart,
            ">= 20",
        ),
        Finding.held_to(
            "memory",
            "Shared factors take at most a tenth of what factors of its own for each layer take, for a 7B model.",
            share,
            "<= 0.1",
        ),
        Finding(
            "memory-size",
            "They take tens of megabytes.",
            "holds" if size_mb.value < 100 else "fails",
            size_mb,
            own_mb,
            "< 100",
        ),
    ], [
        Table("latency", "Products of one block at 256 tokens, seconds", rows),
        Table("memory", "Bytes of secrets, rank 24, pool 4", kept),
    ]


def _one_cost(name: str) -> dict[str, Any]:
    found = timed(SHAPES[name])
    return {
        "model": name,
        "plain": found.plain,
        "correction": found.correction,
        "ratio": found.ratio,
        "overlapped": found.overlapped,
        "all_inside_over_loro": _SLOWDOWN / found.overlapped,
    }
