"""Decisions, their cost, saved routers, logs, and the routers to beat."""

from __future__ import annotations

import json
import math
import threading

import numpy as np
import pytest

from touchstone.decisions.conformal_arbitrage import (
    ConformalArbitrage,
    Costs,
    ScoreLog,
    chord_gain,
    compare_routers,
    measure,
    replay,
)
from touchstone.decisions.conformal_arbitrage.log import write_decisions
from touchstone.errors import InputError


def scene(n: int = 400, m: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Primary scores, Guardian scores and right options of a Primary that is right about half of the time."""
    rng = np.random.default_rng(seed)
    right = np.eye(m)[rng.integers(m, size=n)]
    primary = rng.random((n, m)) + 0.4 * right
    guardian = rng.random((n, m)) + 0.8 * right
    return primary, guardian, right


@pytest.fixture
def router() -> ConformalArbitrage:
    primary, _, right = scene()
    return ConformalArbitrage(0.1).calibrate(primary, right)


def test_no_threshold_is_the_primary_and_an_infinite_one_the_guardian(router):
    primary, guardian, _ = scene(seed=1)
    router.lam_ = 0.0
    made = router.decide(primary, guardian)
    assert (made.choice == primary.argmax(axis=1)).all()
    assert not made.deferred.any()
    assert (made.cost == 1).all()
    router.lam_ = math.inf
    made = router.decide(primary, guardian)
    assert (made.choice == guardian.argmax(axis=1)).all()
    assert (made.candidate_size == 4).all()
    assert (made.cost == 21).all()


def test_a_tie_at_the_top_calls_the_guardian_even_without_a_threshold(router):
    router.lam_ = 0.0
    made = router.decide([[0.7, 0.7, 0.1], [0.9, 0.2, 0.1]], [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    assert made.choice.tolist() == [1, 0]
    assert made.deferred.tolist() == [True, False]
    # 0.3 − 0.1 and 0.2 are one gap apart by rounding only.
    router.lam_ = 0.2
    assert router.candidates([[0.3, 0.1, 0.0]]).tolist() == [[True, True, False]]


@pytest.mark.parametrize("workers", [1, 4])
def test_a_guardian_that_is_a_function_is_called_where_it_is_needed_only(router, workers):
    primary, guardian, _ = scene(seed=2)
    calls = []
    lock = threading.Lock()

    def guard(i, places):
        with lock:
            calls.append((i, tuple(places)))
        return guardian[i, places]

    made = router.decide(primary, guard, workers=workers)
    same = router.decide(primary, guardian)
    assert (made.choice == same.choice).all()
    assert sorted(i for i, _ in calls) == np.flatnonzero(made.deferred).tolist()
    assert made.calls == len(calls) == made.deferred.sum() > 0
    for i, places in calls:
        assert list(places) == np.flatnonzero(made.candidates[i]).tolist()
        assert len(places) > 1


def test_identical_questions_share_a_call(router):
    router.lam_ = 0.5
    scores = np.array([[0.9, 0.8, 0.0]] * 3 + [[0.9, 0.0, 0.8]])
    made = router.decide(scores, lambda i, places: np.arange(len(places)), keys=["a", "a", "b", "a"])
    assert made.calls == 3
    assert made.choice.tolist() == [1, 1, 1, 2]


def test_what_a_function_may_not_return(router):
    router.lam_ = 9.0
    with pytest.raises(InputError, match="guardian: 1 scores for the 3 candidates of query 'q7'"):
        router.decide(np.zeros((1, 3)), lambda i, places: [1.0], keys=["q7"])
    with pytest.raises(InputError, match="guardian: a score of query 0 is not finite"):
        router.decide(np.zeros((1, 3)), lambda i, places: [1.0, math.nan, 0.0])
    with pytest.raises(InputError, match="keys: expected one for each of 1 queries, got 2"):
        router.decide(np.zeros((1, 3)), lambda i, places: [1.0, 0.5, 0.0], keys=["a", "b"])
    with pytest.raises(InputError, match="not calibrated"):
        ConformalArbitrage(0.1).decide(np.zeros((1, 3)), np.zeros((1, 3)))


def test_a_single_option_is_returned_untouched(router):
    made = router.decide([[0.3], [0.2]], lambda i, places: pytest.fail("there is nothing to ask"))
    assert made.choice.tolist() == [0, 0]
    assert len(made.cost) == 2


def test_calibration_queries_are_no_test(router, tmp_path):
    primary, guardian, _ = scene()
    for found in (router, ConformalArbitrage.load(router.save(tmp_path / "router.json"))):
        with pytest.warns(UserWarning, match="these are the calibration queries"):
            found.decide(primary, guardian)


def test_prices_by_call_option_and_token():
    primary, _, right = scene()
    costs = Costs(primary=1, guardian=10, per_option=2, primary_token=0.01, guardian_token=0.1)
    router = ConformalArbitrage(0.1, costs=costs).calibrate(primary, right)
    router.lam_ = 0.15
    tokens = np.array([[1.0, 2.0, 4.0], [8.0, 8.0, 8.0]])
    scores = np.array([[0.9, 0.8, 0.0], [0.9, 0.1, 0.0]])
    made = router.decide(scores, np.zeros((2, 3)), tokens=tokens)
    assert made.cost == pytest.approx([1 + 0.07 + 10 + 2 * 2 + 0.1 * 3, 1 + 0.24])
    expected = router.expected_cost(scores, tokens=tokens)
    assert expected.cost == pytest.approx(made.cost.mean())
    assert (expected.calls, expected.candidates) == (0.5, 2.0)


def test_saving_keeps_everything_even_an_infinite_threshold(tmp_path, router):
    path = router.save(tmp_path / "router.json")
    again = ConformalArbitrage.load(path)
    primary, guardian, _ = scene(seed=3)
    assert (again.decide(primary, guardian).choice == router.decide(primary, guardian).choice).all()
    assert again.margins_ == pytest.approx(router.margins_)
    router.lam_ = math.inf
    text = router.save(tmp_path / "all.json").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["lam"] == "inf"
    assert math.isinf(ConformalArbitrage.load(tmp_path / "all.json").lam_)
    with pytest.raises(InputError, match="frontier: needs calibration queries"):
        again.frontier([0.1])


def test_files_that_are_no_router(tmp_path, router):
    path = router.save(tmp_path / "router.json")
    whole = json.loads(path.read_text())
    for damage, message in (
        ({"version": "other/9"}, "expected version"),
        ({"alpha": 7}, "damaged .*alpha"),
        ({"lam": -1.0}, "damaged"),
        ({"lam": "many"}, "damaged"),
        ({"costs": {"gold": 1}}, "damaged"),
        ({"margins": "x"}, "damaged"),
        ({"reduce": 4}, "damaged"),
    ):
        path.write_text(json.dumps(whole | damage))
        with pytest.raises(InputError, match=message):
            ConformalArbitrage.load(path)
    path.write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        ConformalArbitrage.load(path)
    with pytest.raises(InputError, match="cannot be read"):
        ConformalArbitrage.load(tmp_path / "none.json")
    with pytest.raises(InputError, match="not calibrated"):
        ConformalArbitrage(0.1).save(path)


def test_scores_made_otherwise_are_refused(tmp_path, router):
    path = router.save(tmp_path / "router.json")
    assert ConformalArbitrage.load(path, normalise="none").normalise == "none"
    with pytest.raises(InputError, match=r"normalise 'softmax': .* calibrated with 'none'"):
        ConformalArbitrage.load(path, normalise="softmax")
    with pytest.raises(InputError, match=r"reduce 'sum': .* calibrated with None"):
        ConformalArbitrage.load(path, reduce="sum")


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def line(name: object, **more: object) -> dict[str, object]:
    return {"id": name, "options": ["yes", "no"], "primary": [0.7, 0.3]} | more


def test_a_log_is_calibrated_decided_and_replayed(tmp_path, router):
    records = [line(f"q{i}", primary=[0.5, 0.5 - i / 100], label=i % 2, guardian=[0, 1]) for i in range(40)]
    log = ScoreLog.read(write(tmp_path / "scores.jsonl", records))
    assert log.guard is not None
    assert log.guard[:2].tolist() == [[1, 0], [0, 1]]
    own = ConformalArbitrage(0.2).calibrate(log.primary.scores, log.guard, mask=log.primary.mask)
    with pytest.warns(UserWarning, match="calibration queries"):
        made = own.decide(log.primary.scores, log.guardian)
    write_decisions(tmp_path / "decisions.jsonl", own, log, made)
    assert (replay(tmp_path / "decisions.jsonl", log) == made.choice).all()
    first = json.loads((tmp_path / "decisions.jsonl").read_text().splitlines()[0])
    assert {"id", "lam", "alpha", "candidates", "deferred", "choice", "cost", "answer"} <= first.keys()
    turned = [record | {"options": ["no", "yes"]} for record in records]
    with pytest.raises(InputError, match="options of 'q0' are not those, in that order"):
        replay(tmp_path / "decisions.jsonl", ScoreLog.read(write(tmp_path / "turned.jsonl", turned)))
    with pytest.raises(InputError, match="none for the query 'new'"):
        replay(tmp_path / "decisions.jsonl", ScoreLog.read(write(tmp_path / "new.jsonl", [line("new")])))


def test_a_log_may_lack_guardian_scores_where_it_was_not_asked(tmp_path, router):
    records = [line("a", guardian=[None, None]), line("b", primary=[0.5, 0.5], guardian=[0.0, 1.0])]
    log = ScoreLog.read(write(tmp_path / "scores.jsonl", records))
    router.lam_ = 0.1
    assert router.decide(log.primary.scores, log.guardian).choice.tolist() == [0, 1]
    router.lam_ = 0.9
    with pytest.raises(InputError, match="guardian, row 1: expected finite numbers"):
        router.decide(log.primary.scores, log.guardian)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"options": ["a"], "primary": [1]}], "record 1: expected an 'id'"),
        ([line("a"), line("a")], "the id 'a' stands twice"),
        ([line("a", options=[])], r"\(a\): expected 'options'"),
        ([line("a", primary=[1])], r"\(a\): expected 'primary', 2 numbers"),
        ([line("a", primary=[1, None])], r"\(a\): expected 'primary', 2 numbers"),
        ([line("a", guard_value=["x", 1])], r"\(a\): expected 'guard_value'"),
        ([line("a", label=2)], r"\(a\): label 2 is no place among 2 options"),
        ([line("a", reduce="sum"), line("b")], "lines differ in 'reduce'"),
    ],
)
def test_lines_that_are_no_scores(tmp_path, records, message):
    with pytest.raises(InputError, match=message):
        ScoreLog.read(write(tmp_path / "scores.jsonl", records))


def test_random_routing_in_closed_form_is_its_simulation_and_matched_on_cost():
    primary, guardian, right = scene(n=4000, seed=4)
    for costs in (Costs(), Costs(guardian=4, per_option=5)):
        router = ConformalArbitrage(0.1, costs=costs).calibrate(*[scene(seed=5)[k] for k in (0, 2)])
        found = compare_routers(router, primary, guardian, right, seed=1).set_index("router")
        closed, sampled, own = (found.loc[name] for name in ("random", "random, sampled", "arbitrage"))
        error = 0.5 / math.sqrt(4000)
        assert abs(closed["guard"] - sampled["guard"]) < 3 * error
        assert abs(closed["calls"] - sampled["calls"]) < 3 * error
        assert closed["cost"] == pytest.approx(own["cost"])
        assert (closed["calls"] < own["calls"]) == (costs.per_option > 0)


def test_each_rival_is_what_it_says():
    primary, guardian, right = scene(n=1500, seed=6)
    train = scene(seed=7)
    router = ConformalArbitrage(0.15).calibrate(train[0], train[2])
    found = compare_routers(router, primary, guardian, right, train=(train[0], train[2]), weight=1e9)
    found = found.set_index("router")
    rows = np.arange(1500)
    alone = right[rows, primary.argmax(axis=1)]
    judged = right[rows, guardian.argmax(axis=1)]
    assert found.loc["primary", "guard"] == pytest.approx(alone.mean())
    assert found.loc["guardian", "guard"] == pytest.approx(judged.mean())
    assert found.loc["weighted sum", "guard"] == pytest.approx(judged.mean())
    deferred = router.candidates(primary).sum(axis=1) > 1
    assert found.loc["margin", "guard"] == pytest.approx(np.where(deferred, judged, alone).mean())
    calls = found.loc["arbitrage", "calls"]
    assert calls == pytest.approx(deferred.mean())
    for name in ("margin", "confidence", "entropy", "learned"):
        assert found.loc[name, "calls"] == pytest.approx(calls)
    assert found.loc["oracle", "guard"] == found["guard"].max()
    assert found.loc["oracle", "calls"] <= calls
    numbers = measure(router, primary, guardian, right)
    assert numbers["realised_risk"] == pytest.approx(found.loc["arbitrage", "loss"])
    assert numbers["candidate_risk"] == pytest.approx((right * ~router.candidates(primary)).sum(axis=1).mean())
    assert numbers["realised_risk"] >= numbers["candidate_risk"]


def test_the_gain_above_the_chord():
    # Reference point of the paper's second setting at alpha 0.2, and its chord.
    assert chord_gain((0.780, 0.341), (0.354, 0.919), (0.619, 0.730)) == pytest.approx(0.126, abs=1e-3)
    assert chord_gain((1.0, 0.0), (0.0, 1.0), (0.5, 0.5)) == 0
    assert math.isnan(chord_gain((1.0, 0.5), (0.0, 0.5), (0.5, 0.5)))
