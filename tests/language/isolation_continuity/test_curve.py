"""The curve, its headline numbers by hand, and the position profile."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.isolation_continuity import divergence, findings
from touchstone.language.isolation_continuity.bodies import Body, pattern
from touchstone.language.isolation_continuity.curve import (
    Cells,
    continuity_curve,
    delta_hat,
    invariance,
    single_slope,
    summary,
)
from touchstone.language.isolation_continuity.position import position_profile
from touchstone.language.isolation_continuity.reading import next_log_probs
from touchstone.language.isolation_continuity.report import Report


def _body(model: LanguageModel, length: int = 64) -> Body:
    return pattern(model, ["w1"], symbols=("w1", "w2"), length=length, prompt="w5 w6 w7")


def _rows(cells: dict[tuple[int, float], list[float]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"length": n, "wanted": w, "k": max(1, round(w * n)), "fraction": max(1, round(w * n)) / n}
            | {"draw": i, "tv": tv, "linf": tv, "kl": tv, "top1_same": 1.0, "entropy_base": 0.0, "symbol_mass": 1.0}
            for (n, w), values in cells.items()
            for i, tv in enumerate(values)
        ]
    )


def test_headline_numbers_by_hand() -> None:
    cells = Cells.of(
        _rows({(64, 0): [0.04, 0.04], (256, 0): [0.01, 0.01], (64, 0.1): [0.2, 0.2], (256, 0.1): [0.3, 0.3]})
    )
    # Single changes are 1/64 and 1/256 of the prompt; the smallest share beyond 0.1 is 6/64.
    assert delta_hat(cells, 0.1) == 1 / 64
    assert delta_hat(cells, 0.02) == 1 / 256
    assert delta_hat(cells, 0.001) == 0.0
    assert delta_hat(cells, 0.5) == 26 / 256
    # A quarter of the change at four times the length: a slope of −1.
    assert single_slope(cells) == pytest.approx(-1.0)
    assert invariance(cells) == pytest.approx(0.1)


def test_numbers_that_need_two_lengths_are_not_a_number() -> None:
    cells = Cells.of(_rows({(64, 0): [0.04], (64, 0.1): [0.2]}))
    assert math.isnan(single_slope(cells))
    assert math.isnan(invariance(cells))


def test_a_row_is_what_a_pass_over_its_own_edited_prompt_gives(model: LanguageModel) -> None:
    """Against the plain way: one prompt, one length, one pass."""
    body = _body(model)
    # A guard that leaves one place: the draw is known.
    only = Body(body.name, body.head, body.ids, body.rivals, body.symbols, guard=31)
    report = continuity_curve(model, only, lengths=[32], fractions=[0.04], draws=1, from_length=1)
    edited = [*body.head, body.rivals[1], *body.ids[1:32]]
    base = [*body.head, *body.ids[:32]]
    p, q = (next_log_probs(model, [row], [len(row) - 1])[0, 0] for row in (base, edited))
    rows = report.rows
    assert rows["k"].tolist() == [1, 1]
    assert rows["tv"].to_numpy() == pytest.approx(float(divergence.total_variation(p, q)), abs=1e-5)
    assert rows["kl"].to_numpy() == pytest.approx(float(divergence.kullback_leibler(p, q)), abs=1e-5)
    assert rows["fraction_of_prompt"].to_numpy() == pytest.approx(1 / len(base))


def test_the_report_is_the_same_for_a_seed_and_differs_for_another(model: LanguageModel) -> None:
    options = {"lengths": (16, 64), "fractions": (0.1, 0.4), "draws": 3, "from_length": 16}
    first, again, other = (continuity_curve(model, _body(model), **options, seed=s) for s in (1, 1, 2))  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(first.rows, again.rows)
    assert not np.array_equal(first.rows["tv"], other.rows["tv"])
    assert first.numbers["floor"] < 1e-5
    assert first.rows["tv"].between(0, 1).all()
    assert (first.rows["kl"] >= 2 * first.rows["tv"] ** 2 - 1e-6).all()
    table = summary(first.rows)
    assert (table["tv_q95"] >= table["tv_mean"] - 1e-12).all()
    restored = Report.from_json(first.to_json())
    pd.testing.assert_frame_equal(restored.rows, first.rows, check_dtype=False)
    assert restored.numbers == first.numbers


def test_lengths_at_which_a_share_is_no_token_are_passed_over(model: LanguageModel) -> None:
    rows = continuity_curve(model, _body(model), lengths=(16, 64), fractions=(0.02,), draws=2).rows
    assert sorted(set(zip(rows["length"], rows["wanted"], strict=True))) == [(16, 0.0), (64, 0.0), (64, 0.02)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [65]}, "the body .* has 64 tokens"),
        ({"lengths": [1]}, "nothing can change"),
        ({"lengths": []}, "at least one length"),
        ({"lengths": [16], "fractions": [0.02]}, "changes no token of 16"),
        ({"lengths": [16], "fractions": [1.0]}, "less than 1"),
        ({"lengths": [16], "draws": 0}, "one draw"),
    ],
)
def test_bad_input(model: LanguageModel, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        continuity_curve(model, _body(model), **options)


def test_intervals_hold_their_value_and_verdicts_follow_the_limit() -> None:
    rng = np.random.default_rng(0)
    cells = {(n, w): (rng.random(8) * 0.02 + w / 2).tolist() for n in (64, 256) for w in (0.0, 0.1)}
    numbers = {"symbol_mass": 1.0}
    report = Report("curve", "toy", "", 0, _rows(cells), numbers, {"epsilon": 0.1, "from_length": 64})
    for finding in (findings.delta(report, 0), findings.fading(report, 0), findings.invariant(report, 0)):
        assert finding.verdict == "holds"
        assert finding.measured.low is not None
        assert finding.measured.high is not None
        assert finding.measured.low <= finding.measured.value <= finding.measured.high
    broken = Report("curve", "toy", "", 0, _rows({(64, 0.0): [0.5, 0.6]}), numbers, report.settings)
    assert findings.fading(broken, 0).verdict == "fails"
    assert findings.delta(broken, 0).verdict == "fails"
    assert findings.invariant(broken, 0).verdict == "undecided"


def test_a_model_that_reads_only_the_end_has_a_dead_zone(model: LanguageModel) -> None:
    """Edits of the embedding hide all but the last tokens: changes before them must not be seen."""
    body, length = _body(model), 60
    head = len(body.head)

    def blind(x: torch.Tensor) -> torch.Tensor:
        hidden = x.clone()
        # The pass after a shared head is shorter: count from the end.
        hidden[:, : max(0, x.shape[1] - 10)] = 0.0
        return hidden

    with model.edited({"embedding": blind}, by_row=True):
        report = position_profile(model, body, length=length, points=60, dead=1e-6)
    means = report.rows.groupby("position")["tv"].mean()
    assert (means[means.index < length - 10] < 1e-6).all()
    assert (means[means.index >= length - 10] > 1e-6).all()
    assert report.numbers["dead_zone"] == pytest.approx((length - 10) / (length - 1))
    assert head > 0


def test_position_bad_input(model: LanguageModel) -> None:
    with pytest.raises(InputError, match="at least 10 tokens"):
        position_profile(model, _body(model), length=8)
    with pytest.raises(InputError, match="has 64 tokens"):
        position_profile(model, _body(model), length=65)
