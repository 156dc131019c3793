"""Sweeps, calibration, the side-effect card, the margin and interference, on tiny models with known effects."""

from __future__ import annotations

import numpy as np
import pytest

from touchstone.errors import InputError
from touchstone.language.angular_steering import (
    Contrast,
    Prompting,
    Rotation,
    SteeringPlane,
    Unsteered,
    calibrate,
    interference,
    margins,
    side_effects,
    sweep,
)
from touchstone.language.angular_steering.sweeping import perplexities, summary
from touchstone.language.refusal import RefusalJudge
from touchstone.run import Run

PROMPTS = ["w3 w9", "w5 w38 w7 w8", "w11"]
CONTRAST = Contrast(("w1", "w2 w3"), ("w9",))
TEXTS = ["w1 w2 w3 w4", "w5 w6 w7"]


def test_a_sweep_equals_steering_one_angle_after_the_other(model, plane):
    arm = Rotation(plane, (0.0, 120.0, 240.0), adaptive=False)
    frame = sweep(model, [Unsteered(), arm], PROMPTS, contrast=CONTRAST, texts=TEXTS, rows_per_shard=4)
    assert set(frame["measure"]) == {"contrast", "nll"}
    for value in arm.values:
        with plane.steer(model, value, adaptive=False):
            expected = CONTRAST.score(model, PROMPTS)
            nll = -model.text_log_likelihood(TEXTS).mean[:, 0]
            perplexity = model.perplexity(TEXTS)
        rows = frame[(frame["arm"] == "rotation") & (frame["value"] == value)]
        np.testing.assert_allclose(rows[rows["measure"] == "contrast"]["score"], expected, atol=1e-4)
        np.testing.assert_allclose(rows[rows["measure"] == "nll"]["score"], nll, atol=1e-4)
        assert perplexities(frame)[("rotation", value)] == pytest.approx(perplexity, rel=1e-4)
    base = frame[(frame["arm"] == "unsteered") & (frame["measure"] == "contrast")]["score"]
    np.testing.assert_allclose(base, CONTRAST.score(model, PROMPTS), atol=1e-4)
    table = summary(frame)
    row = table[(table["arm"] == "unsteered") & (table["measure"] == "contrast")].iloc[0]
    assert (row["mean"], row["n"]) == (pytest.approx(base.mean()), 3)


def test_a_contrast_by_hand(model):
    total = model.log_likelihood(PROMPTS, ["w1", "w2 w3", "w9"]).total
    odds = np.log(np.exp(total[:, 0]) + np.exp(total[:, 1])) - total[:, 2]
    np.testing.assert_allclose(CONTRAST.score(model, PROMPTS), odds, atol=1e-5)
    token = Contrast(("w1", "w2 w3"), ("w9",), how="token").score(model, PROMPTS)
    np.testing.assert_allclose(token, (total[:, 0] + total[:, 1] / 2) / 2 - total[:, 2], atol=1e-5)


def test_a_sweep_writes_and_judges(model, plane):
    def has_w1(prompts, replies):
        return [float("w1" in reply.split()) for reply in replies]

    arms = [Unsteered(), Rotation(plane, (0.0, 180.0), adaptive=False)]
    options = {"score": "generate", "judges": {"w1": has_w1}, "max_new_tokens": 6, "reply_likelihood": True}
    frame = sweep(model, arms, PROMPTS, **options)
    assert set(frame["measure"]) == {"incoherent", "w1", "reply_nll"}
    with plane.steer(model, 180.0, adaptive=False):
        replies = model.generate(PROMPTS, max_new_tokens=6)
    rows = frame[(frame["arm"] == "rotation") & (frame["value"] == 180.0)]
    assert rows[rows["measure"] == "incoherent"]["reply"].tolist() == replies
    assert rows[rows["measure"] == "w1"]["score"].tolist() == has_w1(PROMPTS, replies)
    # Likelihood is that of the model as it is, not of the steered one.
    said = [i for i, reply in enumerate(replies) if reply]
    plain = model.log_likelihood([PROMPTS[i] for i in said], [[replies[i]] for i in said]).mean[:, 0]
    np.testing.assert_allclose(rows[rows["measure"] == "reply_nll"]["score"].dropna(), -plain, atol=1e-4)


def test_prompting_is_an_arm(model, plane):
    frame = sweep(model, [Prompting(("w38", "w39"))], PROMPTS, contrast=CONTRAST)
    for value, line in ((0.0, "w38"), (1.0, "w39")):
        expected = CONTRAST.score(model, PROMPTS, system=line)
        np.testing.assert_allclose(frame[frame["value"] == value]["score"], expected, atol=1e-4)


def test_the_journal_serves_the_same_work_and_no_other(model, plane, tmp_path):
    run = Run(journal=tmp_path)
    arm = Rotation(plane, (0.0, 180.0), adaptive=False)
    first = sweep(model, [arm], PROMPTS, contrast=CONTRAST, run=run)
    calls: list[int] = []
    handle = model.module.register_forward_pre_hook(lambda *_: calls.append(1))
    again = sweep(model, [arm], PROMPTS, contrast=CONTRAST, run=run)
    assert calls == []
    assert again["score"].tolist() == first["score"].tolist()
    other = Rotation(plane.control("plane", seed=3), (0.0, 180.0), adaptive=False)
    changed = sweep(model, [other], PROMPTS, contrast=CONTRAST, run=run)
    handle.remove()
    assert calls
    assert changed["score"].tolist() != first["score"].tolist()


def test_calibration_finds_the_crossing(model, plane):
    """A judge that reads the angle off the model: prompts are 'refused' on part of the circle only."""

    def judge(prompts, replies):
        h = model.activations(prompts, plane.sites[:1])[plane.sites[0]]
        angle = np.degrees(np.arctan2((h @ plane.b2).numpy(), (h @ plane.b1).numpy())) % 360
        return [float(a < 77.0 or a > 300.0) for a in angle]

    by_angle = RefusalJudge(judge)
    by_angle.needs_replies = False
    found = calibrate(
        plane, model, PROMPTS, 0.5, judge=by_angle, coarse=6, tolerance=0.5, max_new_tokens=2, adaptive=False
    )
    assert min(abs(found.degrees - 77.0), abs(found.degrees - 300.0)) < 0.6
    assert found.rate.value in (0.0, 1.0)
    assert found.rate.n == 3
    assert len(found.trace) > 6
    everything = calibrate(plane, model, PROMPTS, 1.0, judge=by_angle, coarse=4, max_new_tokens=2, adaptive=False)
    assert (everything.rate.value, everything.reached) == (1.0, True)
    for options, says in (({"target": 1.5}, "target"), ({"target": 0.5, "coarse": 1}, "coarse")):
        with pytest.raises(InputError, match=says):
            calibrate(plane, model, PROMPTS, judge=RefusalJudge(), **options)
    with pytest.raises(InputError, match="prompts"):
        calibrate(plane, model, [], 0.5, judge=RefusalJudge())


def test_the_card_is_the_change_against_no_steering(model, plane):
    card = side_effects(
        model, Rotation(plane, (0.0, 180.0), adaptive=False), texts=TEXTS, prompts=PROMPTS, contrast=CONTRAST
    )
    with plane.steer(model, 180.0, adaptive=False):
        steered = -model.text_log_likelihood(TEXTS).mean[:, 0], CONTRAST.score(model, PROMPTS)
    plain = -model.text_log_likelihood(TEXTS).mean[:, 0], CONTRAST.score(model, PROMPTS)
    row = card[card["value"] == 180.0].iloc[0]
    assert row["nll_change"] == pytest.approx((steered[0] - plain[0]).mean(), abs=1e-4)
    assert row["tone_change"] == pytest.approx((steered[1] - plain[1]).mean(), abs=1e-4)
    weights = model.text_log_likelihood(TEXTS).tokens[:, 0]
    assert row["perplexity_ratio"] == pytest.approx(
        np.exp(np.average(steered[0] - plain[0], weights=weights)), rel=1e-3
    )
    assert row["nll_low"] <= row["nll_change"] <= row["nll_high"]


def test_the_margin_is_where_the_sign_flips(model, plane):
    frame = margins(plane, model, PROMPTS, CONTRAST, step=30.0, tolerance=1.0)
    assert frame["prompt"].tolist() == [0, 1, 2]
    for row in frame.itertuples():

        def score(phi: float, i: int = row.prompt) -> float:
            with plane.steer(model, phi, adaptive=False, form="rotate"):
                return float(CONTRAST.score(model, [PROMPTS[i]])[0])

        assert score(0.0) == pytest.approx(row.natural, abs=1e-4)
        if np.isnan(row.margin):
            steps = [s * d for d in range(30, 181, 30) for s in (1, -1)]
            assert all((score(phi) > 0) == (row.natural > 0) for phi in steps)
        else:
            assert (score(row.direction * row.margin) > 0) != (row.natural > 0)
            assert (score(row.direction * (row.margin - 1.01)) > 0) == (row.natural > 0)
    assert frame["margin"].notna().any()
    with pytest.raises(InputError, match="prompts"):
        margins(plane, model, [], CONTRAST)
    with pytest.raises(InputError, match="step"):
        margins(plane, model, PROMPTS, CONTRAST, step=0)


def test_interference_is_largest_change_by_dial(model, plane):
    other = SteeringPlane.fit(model, ["w20 w1", "w20 w2"], ["w30 w1", "w30 w2"])
    planes, contrasts = {"a": plane, "b": other}, {"a": CONTRAST, "b": Contrast(("w4",), ("w5",))}
    prompts = {"a": PROMPTS, "b": PROMPTS[:2]}
    table = interference(planes, model, contrasts, prompts, degrees=(0.0, 180.0), orthogonal=False, adaptive=False)
    base = contrasts["b"].score(model, prompts["b"]).mean()
    changes = []
    for degrees in (0.0, 180.0):
        with plane.steer(model, degrees, adaptive=False):
            changes.append(abs(contrasts["b"].score(model, prompts["b"]).mean() - base))
    assert table.loc["a", "b"] == pytest.approx(max(changes), abs=1e-4)
    with pytest.raises(InputError, match="same behaviours"):
        interference(planes, model, {"a": CONTRAST}, prompts)


def test_bad_sweeps(model, plane):
    arm = Rotation(plane, (0.0,))
    for arguments, options, says in (
        (([arm], PROMPTS), {"score": "guess", "contrast": CONTRAST}, "score"),
        (([arm], PROMPTS), {}, "contrast"),
        (([arm], "w1"), {"contrast": CONTRAST}, "single string"),
        (([arm],), {}, "at least one"),
        (([arm, arm], PROMPTS), {"contrast": CONTRAST}, "same name"),
    ):
        with pytest.raises(InputError, match=says):
            sweep(model, *arguments, **options)
    with pytest.raises(InputError, match="contrast"):
        Contrast((), ("w1",))
    with pytest.raises(InputError, match="how"):
        Contrast(("w1",), ("w2",), how="bits")
