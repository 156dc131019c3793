"""Conformal Arbitrage: keep the Primary's choice unless a second option is close, and know what that risks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from touchstone.decisions.conformal_arbitrage.asking import Guardian, ask
from touchstone.decisions.conformal_arbitrage.bounds import hoeffding_bentkus, last_rejected, least_level
from touchstone.decisions.conformal_arbitrage.costs import Costs, Expected
from touchstone.decisions.conformal_arbitrage.risk import (
    LossCurve,
    candidate_curve,
    guardian_order,
    monotone_curve,
    realised_curve,
    tolerance_of,
)
from touchstone.decisions.conformal_arbitrage.tables import (
    NORMALISATIONS,
    Normalise,
    Options,
    Rows,
    digest,
    gaps,
    matched,
    normalised,
    table,
)
from touchstone.errors import InputError

__all__ = ["RISKS", "ConformalArbitrage", "Decision", "Guardian", "RiskKind"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
RiskKind = Literal["candidate", "realised_monotone", "realised_ltt"]
RISKS: tuple[RiskKind, ...] = ("candidate", "realised_monotone", "realised_ltt")

# Thresholds that the high-probability mode tests: quantiles of the gaps.
_LTT_GRID = 200
_MAX_JITTER = 1e-9
# Margins kept in the saved state, for the drift alarm to compare with.
_MARGINS = 1000


@dataclass(frozen=True)
class Decision:
    """What was chosen for each query.

    Attributes
    ----------
    choice : place of the option that is returned, [queries].
    deferred : whether the Guardian was called, [queries].
    candidates : which options were within lam of the Primary's best, [queries, options].
    cost : of each query, [queries].
    calls : calls of the Guardian; fewer than deferred queries where identical ones shared a call.
    """

    choice: NDArray[np.int64]
    deferred: Bools
    candidates: Bools
    cost: Floats
    calls: int

    @property
    def candidate_size(self) -> NDArray[np.int64]:
        """Number of candidates of each query."""
        return self.candidates.sum(axis=1)


class ConformalArbitrage:
    """Chooses among options by a Primary's scores, and asks a Guardian among those within ``lam_`` of its best.

    The returned option's Primary score is always within ``lam_`` of the best one. For data exchangeable with the
    calibration set, the expected guardrail loss is at most ``alpha``, on average over calibration sets and queries;
    not for each calibration set, and not for each query.

    Parameters
    ----------
    alpha : the risk that is allowed, in (0, B); 0.1 by default.
    risk : what ``alpha`` bounds. ``"candidate"`` (the paper's): the best guardrail value less the best among the
        candidates; what is returned is as good if the Guardian never errs. ``"realised_monotone"``: the best less
        the returned one's, made monotone. ``"realised_ltt"``: the same with probability at least 1 − delta over
        calibration sets, by tests in a fixed order.
    B : the largest guardrail value; values lie in [0, B].
    normalise : how Primary scores are put on one scale, see :func:`tables.normalised`.
    costs : a pair (Primary, Guardian) of prices a query, or :class:`Costs`.
    delta : for ``"realised_ltt"``; 0.1 by default.
    grid : thresholds to choose from in place of the exact one, only to reproduce runs that had a grid.
    jitter : largest random addition to scores, below 1e-9, that breaks ties; 0 by default.
    seed : of the jitter.

    Attributes
    ----------
    lam_ : the threshold; infinite when every query with two options or more goes to the Guardian.
    n_ : queries it was calibrated on.
    empirical_risk_ : mean loss at ``lam_`` on them.
    alpha_min_ : the smallest alpha that these queries could have certified.
    margins_ : of up to 1,000 of them how far the second option is below the first, sorted; for the drift alarm.

    Raises
    ------
    InputError
        If a parameter is out of its range.

    References
    ----------
    Overman and Bayati, Conformal Arbitrage, NeurIPS 2025, arXiv 2506.00911; Angelopoulos et al., Conformal Risk
    Control, 2022.
    """

    def __init__(
        self,
        alpha: float = 0.1,
        risk: RiskKind = "candidate",
        B: float = 1.0,
        normalise: Normalise = "none",
        costs: Costs | tuple[float, float] = (1.0, 20.0),
        *,
        delta: float = 0.1,
        grid: Sequence[float] | Floats | None = None,
        jitter: float = 0.0,
        seed: int = 0,
    ) -> None:
        if not (math.isfinite(B) and B > 0):
            raise InputError(f"B: expected a positive number, got {B!r}")
        if not 0 < alpha < B:
            raise InputError(f"alpha: expected a number between 0 and B = {B:g}, got {alpha!r}")
        if risk not in RISKS:
            raise InputError(f"risk {risk!r}: expected one of {', '.join(RISKS)}")
        if normalise not in NORMALISATIONS:
            raise InputError(f"normalise {normalise!r}: expected one of {', '.join(NORMALISATIONS)}")
        if not 0 < delta < 1:
            raise InputError(f"delta: expected a number between 0 and 1, got {delta!r}")
        if not 0 <= jitter < _MAX_JITTER:
            raise InputError(f"jitter: expected a number from 0 to below {_MAX_JITTER:g}, got {jitter!r}")
        self.alpha, self.risk, self.B, self.normalise = float(alpha), risk, float(B), normalise
        self.costs, self.delta, self.jitter, self.seed = Costs.of(costs), float(delta), float(jitter), int(seed)
        self.grid = None if grid is None else np.unique(np.asarray(grid, dtype=float))
        if self.grid is not None and not (len(self.grid) and np.isfinite(self.grid).all() and self.grid[0] >= 0):
            raise InputError("grid: expected finite thresholds of at least 0")
        self.reduce: str | None = None
        self.lam_ = math.nan
        self.n_ = 0
        self.empirical_risk_ = self.alpha_min_ = math.nan
        self.tolerance_ = 0.0
        self.digest_ = ""
        self.margins_: Floats = np.zeros(0)
        self._rng = np.random.default_rng([self.seed, 1])
        self._curve: LossCurve | None = None
        self._options: Options | None = None

    # Calibration

    def calibrate(
        self,
        primary_scores: Rows,
        guard_values: Rows,
        guardian_scores: Rows | None = None,
        mask: Bools | None = None,
    ) -> Self:
        """Choose the threshold from queries whose guardrail values are known.

        Parameters
        ----------
        primary_scores : [queries, options], or a list of rows where the number of options varies.
        guard_values : G of every option, in [0, B], larger is better; 1 for the right option, 1 − harm, a rating.
        guardian_scores : the Guardian's score of every option; needed when a realised risk is to be bounded.
        mask : where an array has an option.

        Raises
        ------
        InputError
            If scores are not finite, values lie outside [0, B] (naming rows), Guardian scores are needed and
            missing, or a realised risk cannot be brought below alpha (naming the smallest that can).
        """
        raw = table(primary_scores, "primary_scores", mask)
        options = self.prepared(raw)
        guard = matched(guard_values, "guard_values", options, low=0.0, high=self.B)
        guardian = None if guardian_scores is None else matched(guardian_scores, "guardian_scores", options)
        self.tolerance_ = tolerance_of(options)
        self.n_ = len(options.scores)
        self.digest_ = digest(raw)
        curve = self._curve_of(options, guard, guardian)
        self.alpha_min_ = self._least(curve)
        self.lam_ = self._choose(curve, options)
        self.empirical_risk_ = float(curve.risk(self.lam_))
        # Their order is that of the queries, which is exchangeable: the first ones are as good as any.
        some = np.flatnonzero(options.sizes > 1)[:_MARGINS]
        self.margins_ = np.sort(_margins(Options(options.scores[some], options.mask[some])))
        self._curve, self._options = curve, options
        return self

    def _curve_of(self, options: Options, guard: Floats, guardian: Floats | None) -> LossCurve:
        if self.risk == "candidate":
            return candidate_curve(options, guard, self.B)
        if guardian is None:
            raise InputError(f"guardian_scores: risk {self.risk!r} bounds what is returned, so it needs them")
        make = monotone_curve if self.risk == "realised_monotone" else realised_curve
        return make(options, guard, guardian, self.B)

    def _least(self, curve: LossCurve) -> float:
        if self.risk == "realised_ltt":
            return self.B * least_level(float(curve.risk(math.inf)) / self.B, self.n_, self.delta)
        return curve.least

    def _choose(self, curve: LossCurve, options: Options) -> float:
        if self.risk == "realised_ltt":
            found = self._tested(curve, options, self.alpha)
        elif self.grid is None:
            found = curve.threshold(self.alpha)
        else:
            fine = self.grid[self.grid >= curve.threshold(self.alpha) - curve.tolerance]
            found = float(fine[0]) if len(fine) else math.inf
        if math.isfinite(found) or self.risk == "candidate":
            if math.isinf(found):
                needed = math.ceil(self.B / self.alpha - 1e-9) - 1
                warnings.warn(
                    f"alpha = {self.alpha:g} needs at least {needed} calibration queries, there are {self.n_}: "
                    "every query goes to the Guardian",
                    stacklevel=3,
                )
            return found
        alone = float(curve.risk(math.inf))
        raise InputError(
            f"alpha {self.alpha:g}: the Guardian alone loses {alone:.4g} on the {self.n_} calibration queries, "
            f"so that the smallest alpha they can certify is {self.alpha_min_:.4g}"
        )

    def _tested(self, curve: LossCurve, options: Options, alpha: float) -> float:
        grid = self.grid
        if grid is None:
            gap = gaps(options)
            grid = np.unique(np.quantile(gap[options.mask], np.linspace(0, 1, _LTT_GRID)))
        descending = grid[::-1]
        p_values = hoeffding_bentkus(curve.risk(descending) / self.B, self.n_, alpha / self.B)
        place = last_rejected(p_values, self.delta)
        return math.inf if place < 0 else float(descending[place])

    @property
    def distinct_gaps_(self) -> int | None:
        """Number of distinct gaps among the calibration queries; few make ``lam_`` jump. ``None`` once loaded."""
        if self._options is None:
            return None
        values = np.sort(gaps(self._options)[self._options.mask])
        return 1 + int((np.diff(values) > self.tolerance_).sum())

    # Use

    def candidates(self, primary_scores: Rows, mask: Bools | None = None) -> Bools:
        """The options within ``lam_`` of the Primary's best, bool [queries, options]."""
        return self.inside(self._read(primary_scores, mask))

    def decide(
        self,
        primary_scores: Rows,
        guardian: Rows | Guardian,
        *,
        mask: Bools | None = None,
        keys: Sequence[Hashable] | None = None,
        tokens: Floats | None = None,
        workers: int = 1,
    ) -> Decision:
        """Choose an option for each query.

        Parameters
        ----------
        primary_scores : as in :meth:`calibrate`.
        guardian : its scores [queries, options], read only where it is asked; or a function of a query's place and
            its candidates' places that returns a score for each, called only where there are two candidates or more.
        mask : where an array has an option.
        keys : names of queries; queries with the same name and candidates share a call.
        tokens : length of each option [queries, options], for prices by the token.
        workers : calls of the function at once; results do not depend on it.

        Raises
        ------
        InputError
            If it is not calibrated, scores are not as expected, or the function returns another number of scores
            than it was given candidates (naming the query).
        """
        raw = table(primary_scores, "primary_scores", mask)
        options = self.prepared(raw)
        if digest(raw) == self.digest_:
            warnings.warn("these are the calibration queries: what is measured on them is no test", stacklevel=2)
        candidates = self.inside(options)
        deferred = candidates.sum(axis=1) > 1
        shown = candidates & deferred[:, None]
        calls = int(deferred.sum())
        if callable(guardian):
            scores, calls = ask(guardian, shown, keys, workers)
        else:
            scores = matched(guardian, "guardian", Options(options.scores, shown))
        rank = guardian_order(Options(options.scores, candidates), scores)
        choice = np.where(deferred, rank.argmin(axis=1), candidates.argmax(axis=1)).astype(np.int64)
        cost = self.costs.first(len(choice), tokens) + deferred * self.costs.second(shown, tokens)
        return Decision(choice, deferred, candidates, cost, calls)

    def expected_cost(
        self, primary_scores: Rows, mask: Bools | None = None, *, tokens: Floats | None = None
    ) -> Expected:
        """What these queries will cost, before any call of the Guardian."""
        return self._spend(self._read(primary_scores, mask), self._lam(), tokens)

    def frontier(self, alphas: Sequence[float] | Floats) -> pd.DataFrame:
        """Thresholds for many alphas from one sort, with what they risk and cost on the calibration queries.

        Columns ``alpha``, ``lam`` (infinite: all to the Guardian; NaN: cannot be certified), ``risk``, ``calls``,
        ``candidates`` (mean number when the Guardian is called) and ``cost``. To choose an alpha by looking at the
        frontier breaks its guarantee: calibrate the chosen one on queries that were not looked at.

        Raises
        ------
        InputError
            If it was loaded, not calibrated: the queries are not kept in the file.
        """
        curve, options = self._curve, self._options
        if curve is None or options is None:
            raise InputError("frontier: needs calibration queries; call calibrate first")
        rows = []
        for alpha in map(float, alphas):
            if not 0 < alpha < self.B:
                raise InputError(f"alphas: expected numbers between 0 and B = {self.B:g}, got {alpha!r}")
            lam = self._tested(curve, options, alpha) if self.risk == "realised_ltt" else curve.threshold(alpha)
            if math.isinf(lam) and self.risk != "candidate":
                rows.append((alpha, math.nan, math.nan, math.nan, math.nan, math.nan))
                continue
            spend = self._spend(options, lam)
            rows.append((alpha, lam, float(curve.risk(lam)), spend.calls, spend.candidates, spend.cost))
        return pd.DataFrame(rows, columns=["alpha", "lam", "risk", "calls", "candidates", "cost"])

    def alpha_for(self, budget: float) -> float:
        """The smallest alpha that the calibration queries can certify at a mean cost of at most ``budget`` a query.

        To be calibrated on queries that were not looked at, for the choice depends on these.

        Raises
        ------
        InputError
            If not even the Primary alone, with its ties, fits the budget.
        """
        curve, options = self._curve, self._options
        if curve is None or options is None or self.risk == "realised_ltt":
            raise InputError("alpha_for: needs calibration queries and a risk that is bounded on average")
        lams = np.concatenate([[0.0], curve.steps])
        if self._spend(options, 0.0).cost > budget:
            raise InputError(f"budget {budget:g}: the Primary alone costs {self._spend(options, 0.0).cost:g} a query")
        low, high = 0, len(lams)
        while high - low > 1:
            middle = (low + high) // 2
            fits = self._spend(options, float(lams[middle])).cost <= budget
            low, high = (middle, high) if fits else (low, middle)
        return (float(curve.total(float(lams[low]))) + self.B) / (self.n_ + 1)

    # Inside

    def _lam(self) -> float:
        if math.isnan(self.lam_):
            raise InputError("the router is not calibrated: call calibrate or load first")
        return self.lam_

    def _read(self, primary_scores: Rows, mask: Bools | None) -> Options:
        return self.prepared(table(primary_scores, "primary_scores", mask))

    def prepared(self, options: Options) -> Options:
        """Scores that are checked already, normalised and with their jitter."""
        options = normalised(options, self.normalise)
        if self.jitter:
            options = Options(options.scores + self.jitter * self._rng.random(options.scores.shape), options.mask)
        return options

    def inside(self, options: Options) -> Bools:
        """Candidates of scores that are checked and normalised already."""
        return options.mask & (gaps(options) <= self._lam() + self.tolerance_)

    def _spend(self, options: Options, lam: float, tokens: Floats | None = None) -> Expected:
        candidates = options.mask & (gaps(options) <= lam + self.tolerance_)
        sizes = candidates.sum(axis=1)
        deferred = sizes > 1
        price = self.costs.first(len(sizes), tokens) + deferred * self.costs.second(candidates, tokens)
        mean = float(sizes[deferred].mean()) if deferred.any() else math.nan
        return Expected(float(price.mean()), float(deferred.mean()), mean)

    def save(self, path: str | Path) -> Path:
        """Write it as one JSON file, see :func:`storage.save`."""
        from touchstone.decisions.conformal_arbitrage.storage import save

        return save(self, path)

    @classmethod
    def load(cls, path: str | Path, *, normalise: str | None = None, reduce: str | None = None) -> ConformalArbitrage:
        """Read what :meth:`save` wrote, see :func:`storage.load`."""
        from touchstone.decisions.conformal_arbitrage.storage import load

        return load(path, normalise=normalise, reduce=reduce)

    def summary(self) -> dict[str, Any]:
        """What was calibrated, as plain values."""
        return {
            "alpha": self.alpha,
            "lam": self.lam_,
            "risk": self.risk,
            "n": self.n_,
            "empirical_risk": self.empirical_risk_,
            "alpha_min": self.alpha_min_,
            "distinct_gaps": self.distinct_gaps_,
            "digest": self.digest_,
        }


def _margins(options: Options) -> Floats:
    """How far the second best of each query is below the best, [queries]; each must have two options or more."""
    return np.partition(gaps(options), 1, axis=1)[:, 1] if options.scores.size else np.zeros(0)
