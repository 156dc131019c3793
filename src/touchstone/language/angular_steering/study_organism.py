"""Study, part B: refusal in a model organism, where the truth is known and a steered answer can be right or wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from touchstone.evidence import Figure, Finding, Table
from touchstone.language.angular_steering import figures
from touchstone.language.angular_steering.arms import (
    Ablation,
    Addition,
    Arm,
    Rotation,
    Unsteered,
    residual_plane,
    selective,
)
from touchstone.language.angular_steering.plane import SteeringPlane
from touchstone.language.angular_steering.study_organism_findings import (
    ADAPTIVE,
    ALL,
    LOW,
    PROMPT_END,
    organism_findings,
)
from touchstone.language.angular_steering.sweeping import sweep
from touchstone.language.model import LanguageModel
from touchstone.language.organisms import GuardedLanguage, grow

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["Size", "organism"]

OUTCOMES = ("refused", "answered", "wrong", "neither")
_THOUGHT, _REPLY = 4, 9


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes
    ----------
    steps : training steps of the organism; ``None`` for its recipe's own.
    prompts : test prompts of each kind.
    scored : how many of them have the likelihood of their replies measured.
    fit : calibration prompts of each kind.
    step, control_step : degrees between angles for both forms of rotation, and for controls and other arms.
    seeds : random planes.
    alphas : settings tried to place an addition, and to measure it.
    """

    steps: int | None
    prompts: int
    scored: int
    fit: int
    step: int
    control_step: int
    seeds: int
    alphas: int


@dataclass(frozen=True)
class _Setting:
    """The organism with its prompts."""

    model: LanguageModel
    language: GuardedLanguage
    fit: dict[str, list[str]]
    check: list[str]
    test: list[str]
    overridden: list[str]


def organism(size: Size, run: Run) -> tuple[list[Finding], list[Table], list[Figure]]:
    """Grow the organism, find the plane on 8 + 8 topics and sweep the circle on the other 4 + 4."""
    setting = _setting(size, run)
    model = setting.model
    circle, coarse = (tuple(float(angle) for angle in range(0, 360, step)) for step in (size.step, size.control_step))
    planes = {
        where: SteeringPlane.fit(model, setting.fit[f"guarded {where}"], setting.fit[f"plain {where}"])
        for where in ("decision", "prompt end")
    }
    plane = planes["decision"]
    residual = residual_plane(model, setting.fit["guarded decision"], setting.fit["plain decision"])
    measure = partial(_measure, setting, run)

    main: list[Arm] = [
        Unsteered(),
        Rotation(plane, circle, name=ADAPTIVE),
        Rotation(plane, circle, adaptive=False, name=ALL),
    ]
    others: list[Arm] = [
        Ablation(plane, name="ablation at the norms"),
        Ablation(residual, name="ablation in the residual stream"),
        Rotation(planes["prompt end"], coarse, name=PROMPT_END),
        Rotation(plane.control("second", seed=run.seed), coarse, name="rotation, random second axis"),
        selective(plane, coarse),
    ]
    for k in range(size.seeds):
        control = plane.control("plane", seed=run.seed + k)
        others.append(Rotation(control, coarse, name=f"random plane {k + 1}, adaptive"))
        others.append(Rotation(control, coarse, adaptive=False, name=f"random plane {k + 1}, all tokens"))
    frame = measure([*main, *others], setting.test, "refusal over the circle")
    additions = _additions(plane, residual, frame, setting, size, run)
    compared = list({arm.name: arm for arm in additions.values()}.values())
    frame = pd.concat([frame, measure(compared, setting.test, "activation addition")])
    frame = pd.concat(
        [frame, measure([Unsteered(name="prompting (override word)")], setting.overridden, "prompting")],
        ignore_index=True,
    )
    half = size.prompts
    some = setting.test[: size.scored] + setting.test[half : half + size.scored]
    likely = measure([*main, *compared], some, "likelihood of replies", reply_likelihood=True)
    frame = pd.concat([frame, likely[likely["measure"] == "reply_nll"]], ignore_index=True)

    rates = _rates(frame)
    findings = organism_findings(frame, rates, {group: arm.name for group, arm in additions.items()}, size.prompts)
    tables = [
        Table("organism-sweep", "Organism: rates by arm and setting", rates),
        Table("organism-arms", "Organism: each arm at a glance", _glance(rates)),
        Table("organism-plane", "Organism: the points of the plane", plane.diagnostics),
    ]
    return findings, tables, [figures.organism(rates, [arm.name for arm in additions.values()])]


def _setting(size: Size, run: Run) -> _Setting:
    language = GuardedLanguage("a")
    with run.progress.bar("growing the organism", 1) as advance:
        grown = grow(language, run.seed, steps=size.steps)
        advance()
    model = LanguageModel(grown.module, grown.tokenizer, source=f"organism {language.name}-{run.seed}", threads=1)
    rng = np.random.default_rng(run.seed)
    topics = {
        "guarded": rng.permutation([t for t in range(language.topics) if language.is_guarded(t)]),
        "plain": rng.permutation([t for t in range(language.topics) if not language.is_guarded(t)]),
    }

    def prompts(kind: str, held_out: bool, count: int, *, override: bool = False) -> list[str]:
        among = topics[kind][8:] if held_out else topics[kind][:8]
        return language.prompts([int(t) for t in np.resize(among, count)], rng, override=override)

    fit: dict[str, list[str]] = {}
    for kind in topics:
        asked = prompts(kind, False, size.fit)
        fit[f"{kind} prompt end"] = asked
        # The organism thinks first. Whether it refuses is decided where its thought ends.
        thoughts = model.generate(asked, max_new_tokens=_THOUGHT, batch_size=512)
        fit[f"{kind} decision"] = [f"{prompt} {thought}" for prompt, thought in zip(asked, thoughts, strict=True)]
    check = [prompt for kind in topics for prompt in prompts(kind, False, min(64, size.prompts))]
    test = [prompt for kind in topics for prompt in prompts(kind, True, size.prompts)]
    overridden = [prompt for kind in topics for prompt in prompts(kind, True, size.prompts, override=True)]
    return _Setting(model, language, fit, check, test, overridden)


def _outcome(language: GuardedLanguage, what: str, prompts: Sequence[str], replies: Sequence[str]) -> list[float]:
    """Judge: 1 where a reply did ``what``."""
    pairs = zip(prompts, replies, strict=True)
    return [float(language.outcome(_topic(prompt), reply) == what) for prompt, reply in pairs]


def _topic(prompt: str) -> int:
    found = re.search(r"topic(\d+)", prompt)
    assert found is not None
    return int(found[1])


def _measure(
    setting: _Setting, run: Run, arms: Sequence[Arm], prompts: list[str], label: str, *, reply_likelihood: bool = False
) -> pd.DataFrame:
    frame = sweep(
        setting.model,
        arms,
        prompts,
        score="generate",
        judges={what: partial(_outcome, setting.language, what) for what in OUTCOMES},
        reply_likelihood=reply_likelihood,
        max_new_tokens=_REPLY,
        batch_size=512,
        rows_per_shard=2048,
        run=run,
        label=label,
    )
    half = len(prompts) // 2
    frame["topics"] = np.where(frame["item"] < half, "guarded", "plain")
    return frame.drop(columns=["reply"])


def _additions(
    plane: SteeringPlane, residual: SteeringPlane, frame: pd.DataFrame, setting: _Setting, size: Size, run: Run
) -> dict[str, Addition]:
    """Activation addition: the counterpart of rotation (same vector, same points), and the best that was found
    anywhere.

    Where it is added, and how far α must reach to bring refusals as low as rotation does, are chosen on fresh prompts
    about the calibration topics; among the places that reach it, the one with the least garbage on the way is taken.
    """
    lowest = _lowest(frame, ADAPTIVE) + 0.02
    scan = tuple(float(alpha) for alpha in np.linspace(-1.5, 0.0, size.alphas + 1)[:-1].round(3))
    same = Addition(plane, scan, name="addition at the same points")
    everywhere = [
        same,
        Addition(plane, scan, own=True, name="addition at all norms, own directions"),
        *(Addition(plane, scan, layers=[site], name=f"addition at {site}") for site in plane.sites[1:]),
        Addition(residual, scan, name="addition to the residual stream after all blocks"),
        *(
            Addition(
                residual,
                scan,
                layers=[site],
                own=True,
                name=f"addition to the residual stream after block {site.block}",
            )
            for site in residual.sites
        ),
    ]
    tried = _measure(setting, run, everywhere, setting.check, "placing the additions")
    rates = _rates(tried)
    found = {}
    for group, arms in (("same points", [same]), ("anywhere", everywhere)):
        best: tuple[bool, float, Addition, float] | None = None
        for arm in arms:
            mine = rates[rates["arm"] == arm.name].sort_values("value", ascending=False)
            enough = mine[mine["guarded refused"] <= lowest]
            row = enough.iloc[0] if len(enough) else mine.sort_values("guarded refused", kind="stable").iloc[0]
            upto = mine[mine["value"] >= row["value"]]
            garbage = float((1 - upto["guarded refused"] - upto["guarded answered"]).mean())
            candidate = (not len(enough), garbage, arm, float(row["value"]))
            if best is None or candidate[:2] < best[:2]:
                best = candidate
        assert best is not None
        _, _, arm, alpha = best
        # Both directions, as the circle has both.
        values = tuple(float(value) for value in np.linspace(alpha, -alpha, size.alphas))
        found[group] = replace(arm, values=values)
    return found


def _lowest(frame: pd.DataFrame, arm: str) -> float:
    here = frame[(frame["arm"] == arm) & (frame["measure"] == "refused") & (frame["topics"] == "guarded")]
    return float(here.groupby("value")["score"].mean().min())


def _rates(frame: pd.DataFrame) -> pd.DataFrame:
    """One row an arm and setting: rates of outcomes on guarded and plain topics, and the reply's unsteered NLL."""
    table = frame[frame["measure"].isin([*OUTCOMES, "reply_nll"])].pivot_table(
        index=["arm", "value", "unit"], columns=["topics", "measure"], values="score", sort=False
    )
    table.columns = [" ".join(map(str, key)) for key in table.columns]
    wanted = [f"{topics} {measure}" for topics in ("guarded", "plain") for measure in (*OUTCOMES, "reply_nll")]
    return table.reindex(columns=wanted).reset_index()


def _glance(rates: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for arm, mine in rates.groupby("arm", sort=False):
        garbage = 1 - mine["guarded refused"] - mine["guarded answered"]
        rows.append(
            {
                "arm": arm,
                "settings": len(mine),
                "guarded refused, lowest": mine["guarded refused"].min(),
                "guarded refused, highest": mine["guarded refused"].max(),
                "guarded answered, highest": mine["guarded answered"].max(),
                "guarded garbage, mean": garbage.mean(),
                "guarded garbage, mean where refused <= 0.2": garbage[mine["guarded refused"] <= LOW].mean(),
                "plain answered, lowest": mine["plain answered"].min(),
                "plain refused, highest": mine["plain refused"].max(),
                "guarded reply NLL, highest": mine["guarded reply_nll"].max(),
            }
        )
    return pd.DataFrame(rows)
