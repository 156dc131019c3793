"""What is measured on a model that need not reason: whether it tells cues apart, and what the edit does to it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from touchstone.language.refusal import log_odds
from touchstone.language.test_awareness.arms import Arm, How, build_arms, has_gates
from touchstone.language.test_awareness.comparison import AwarenessStudy, Comparison, fingerprint
from touchstone.language.test_awareness.features import Features, cue_features
from touchstone.language.test_awareness.outcomes import ProbeScore, Readout, TextLoss, readout_tasks, tasks_of
from touchstone.language.test_awareness.outcomes import Task as Task
from touchstone.language.test_awareness.pairs import Pair, build_pairs
from touchstone.language.test_awareness.probe import AwarenessProbe
from touchstone.language.test_awareness.templates import NEUTRAL_TEXTS, PROMPT_LINES
from touchstone.language.test_awareness.validation import CrossValidation, bag_of_words, cross_validate

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.run import Run

__all__ = ["Survey", "SurveySize", "read_cues", "survey"]

_SHARD = 30


@dataclass(frozen=True)
class SurveySize:
    """How much is measured.

    Attributes
    ----------
    pairs : cue pairs.
    tokens : tokens after a cue that are pooled.
    folds, shuffles : of the cross-validation.
    strength : of the edit, in norms of the edited rows; of residual steering, in norms of the residual stream.
    k : rows to edit, 0 for the paper's share.
    rank : ``"global"`` or ``"layer"``.
    how : ``"edit"``, ``"residual"``, or ``"auto"`` for the edit where the model has gates.
    randoms : random directions that the answer is compared with.
    cost_randoms : how many of them the cost is compared with, and move the edit's own rows.
    requests : pairs after which the model is asked where it is, and whose willing answers are compared.
    """

    pairs: int = 60
    tokens: int = 8
    folds: int = 5
    shuffles: int = 5
    strength: float = 1.0
    k: int = 0
    rank: Literal["global", "layer"] = "global"
    how: Literal["auto", "edit", "residual"] = "auto"
    randoms: int = 19
    cost_randoms: int = 3
    requests: int = 12


@dataclass(frozen=True)
class Survey:
    """What was measured.

    Attributes
    ----------
    pairs : the cue pairs.
    features : means over the tokens after each cue.
    by_pair, by_cue : cross-validation with whole pairs held out, and with whole cues.
    words : whether words alone decide each row rightly: the pooled ones, by pair.
    all_words : the same with all words of the prompt, by cue.
    probe : the probe whose direction is edited along.
    arms : the answer "test" against "real" in every arm.
    cost : loss on neutral text in some arms.
    scores : the probe's own score in some arms.
    asked : the same answer after each request, untouched.
    willing : log-odds of a willing answer for each pair, [pairs, 2], real and made up.
    """

    pairs: list[Pair]
    features: Features
    by_pair: CrossValidation
    by_cue: CrossValidation
    words: np.ndarray
    all_words: np.ndarray
    probe: AwarenessProbe
    arms: Comparison
    cost: Comparison
    scores: Comparison
    asked: Comparison
    willing: np.ndarray
    strength: float
    how: How


def survey(model: LanguageModel, size: SurveySize, run: Run) -> Survey:
    """Measure all of it."""
    pairs = build_pairs(n=size.pairs, seed=run.seed, tokenise=model.encode_continuation)
    features = read_cues(model, pairs, size.tokens, run)
    cues = np.array([pair.group for pair in pairs for _ in (False, True)], dtype=str)
    options: dict[str, Any] = {"folds": size.folds, "seed": run.seed}
    x, y, groups = features.x, features.y, features.groups
    whole = [model.encode_continuation(pair.side(side)) for pair in pairs for side in (False, True)]
    probe = AwarenessProbe(folds=size.folds, seed=run.seed).fit(x, y, groups, source=model.source)
    how: How = "edit" if size.how == "edit" or (size.how == "auto" and has_gates(model)) else "residual"
    arms = _arms(model, probe, size, how, run.seed)
    few = [arm for arm in arms if arm.kind in ("base", "edit", "residual")]
    random = [arm for arm in arms if arm.kind == "random"][: 2 * size.cost_randoms]
    asked = tasks_of(pairs[: size.requests])
    score = ProbeScore(
        probe.coef_[probe.layers_.index(probe.layer_)],
        float(probe.intercept_[probe.layers_.index(probe.layer_)]),
        probe.layer_,
        {task.id: pair.cue(side) for task, (pair, side) in zip(asked, _sides(pairs[: size.requests]), strict=True)},
        size.tokens,
    )
    texts = [Task(f"text-{i}", f"text-{i}", text) for i, text in enumerate(NEUTRAL_TEXTS)]
    return Survey(
        pairs,
        features,
        cross_validate(x, y, groups, shuffles=size.shuffles, **options),
        cross_validate(x, y, cues, shuffles=0, **options),
        bag_of_words(features.tokens, y, groups, **options),
        bag_of_words(whole, y, cues, **options),
        probe,
        AwarenessStudy(model, arms, readout_tasks(), Readout(), "answers in every arm").run(run),
        AwarenessStudy(model, few + random, texts, TextLoss(), "cost on neutral text").run(run),
        AwarenessStudy(model, few, asked[: size.requests], score, "the probe's score", arms_per_unit=1).run(run),
        AwarenessStudy(model, few[:1], readout_tasks(asked), Readout(), "answers after requests").run(run),
        _willing(model, pairs[: size.requests], run),
        size.strength,
        how,
    )


def read_cues(model: LanguageModel, pairs: Sequence[Pair], tokens: int, run: Run, group: str = "pair") -> Features:
    """:func:`cue_features`, in units of work."""
    shards = [list(pairs[i : i + _SHARD // 2]) for i in range(0, len(pairs), _SHARD // 2)]
    label = f"reading cues [{fingerprint(model.source, [pair.id for pair in pairs], tokens)}]"
    parts = [_unpacked(item) for item in run.map(label, partial(_read, model, tokens), shards)]
    return Features(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        np.concatenate([part.groups for part in parts]),
        tuple(row for part in parts for row in part.tokens),
        parts[0].layers,
    )


def _arms(model: LanguageModel, probe: AwarenessProbe, size: SurveySize, how: How, seed: int) -> list[Arm]:
    # What a norm of a row is for the edit would drown the stream: a tenth of its norm is a usual dose there.
    strength = size.strength if how == "edit" else size.strength / 10
    return build_arms(
        model,
        probe.direction_,
        strengths=(-strength, strength),
        controls=("random", "shuffled", "prompt"),
        shuffled=probe.shuffled_direction_,
        lines=PROMPT_LINES,
        randoms=size.randoms,
        how=how,
        layer=probe.layer_,
        k=size.k or None,
        rank=size.rank,
        seed=seed,
    ) + [arm for arm in _same_rows(model, probe, size, how, strength, seed) if arm.kind == "same_rows"]


def _same_rows(
    model: LanguageModel, probe: AwarenessProbe, size: SurveySize, how: How, strength: float, seed: int
) -> list[Arm]:
    if how != "edit":
        return []
    return build_arms(
        model,
        probe.direction_,
        strengths=(-strength, strength),
        controls=("same_rows",),
        randoms=size.cost_randoms,
        k=size.k or None,
        rank=size.rank,
        seed=seed,
    )


def _sides(pairs: Sequence[Pair]) -> list[tuple[Pair, bool]]:
    return [(pair, side) for pair in pairs for side in (False, True)]


def _willing(model: LanguageModel, pairs: Sequence[Pair], run: Run) -> np.ndarray:
    """Log-odds of a willing opening against a refusing one, [pairs, 2]."""
    prompts = [pair.side(side) for pair, side in _sides(pairs)]
    shards = [prompts[i : i + 8] for i in range(0, len(prompts), 8)]
    label = f"willingness [{fingerprint(model.source, prompts)}]"
    found = [value for part in run.map(label, partial(_openings, model), shards) for value in part]
    return np.array(found).reshape(len(pairs), 2)


def _openings(model: LanguageModel, prompts: Sequence[str]) -> list[float]:
    return [float(-value) for value in log_odds(model, prompts)]


def _read(model: LanguageModel, tokens: int, pairs: Sequence[Pair]) -> dict[str, Any]:
    """One unit of work; the numbers go as text, since a journal holds JSON."""
    found = cue_features(model, pairs, tokens=tokens)
    return {
        "x": base64.b64encode(np.ascontiguousarray(found.x, dtype=np.float32).tobytes()).decode(),
        "shape": list(found.x.shape),
        "y": found.y.tolist(),
        "groups": found.groups.tolist(),
        "tokens": [list(row) for row in found.tokens],
        "layers": list(found.layers),
    }


def _unpacked(item: dict[str, Any]) -> Features:
    x = np.frombuffer(base64.b64decode(item["x"]), dtype=np.float32).reshape(item["shape"])
    tokens = tuple(tuple(row) for row in item["tokens"])
    return Features(x, np.array(item["y"]), np.array(item["groups"], dtype=str), tokens, tuple(item["layers"]))
