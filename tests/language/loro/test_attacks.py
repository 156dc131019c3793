"""What masks give away: rivals compute rightly and are undone, ranks are taken away, exact and full-rank masks hold."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from touchstone.errors import InputError
from touchstone.language.loro import LoROConfig, predicted_error, protect, rank_for, spectral_attack
from touchstone.language.loro.costs import SHAPES, layer_shapes, memory, timed
from touchstone.language.loro.exact import ExactLinear, quantised
from touchstone.language.loro.hadamard import HadamardMask, fwht
from touchstone.language.loro.rivals import LoRO, Permutation, ScalarNoise, ShadowNet, SparseAdditive, rivals
from touchstone.language.loro.spectrum import apparent_rank, pooled_attack
from touchstone.language.loro.stealing import (
    Data,
    classifier,
    observation_attack,
    score,
    steal,
    train,
    weights_of,
    with_weights,
)
from touchstone.language.loro.study import study
from touchstone.language.loro.threat import threat_report
from touchstone.run import Run

KEY = bytes(range(32))


def pair(n: int = 96, m: int = 80, update: float = 0.02, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Private and public weights."""
    rng = np.random.default_rng(seed)
    public = 0.05 * rng.standard_normal((n, m))
    return public + update * 0.05 * rng.standard_normal((n, m)), public


@pytest.mark.parametrize("obfuscator", rivals(4), ids=lambda one: one.name)
def test_every_way_of_hiding_computes_the_plain_product(obfuscator):
    private, _ = pair()
    x = np.random.default_rng(1).standard_normal((5, 96))
    for layer in range(3):
        hidden = obfuscator.hide(private, layer, 3, np.random.default_rng(2))
        assert np.allclose(obfuscator.output(x, hidden), x @ private, atol=1e-6)


@pytest.mark.parametrize(
    "obfuscator", [SparseAdditive(), ScalarNoise(), Permutation(), ShadowNet()], ids=lambda o: o.name
)
def test_public_weights_undo_earlier_ways(obfuscator):
    private, public = pair()
    hidden = obfuscator.hide(private, 0, 3, np.random.default_rng(3))
    found = obfuscator.recover(hidden.observed, public)
    assert np.linalg.norm(found - private) < 0.25 * np.linalg.norm(hidden.observed[:, :80] - private)
    assert np.linalg.norm(found - private) <= 1.2 * np.linalg.norm(public - private)


def test_the_permutation_is_found_whole_and_the_scalar_within_a_percent():
    private, public = pair()
    hidden = Permutation().hide(private, 0, 3, np.random.default_rng(4))
    assert np.array_equal(Permutation().recover(hidden.observed, public), private)
    hidden = ScalarNoise().hide(private, 0, 3, np.random.default_rng(5))
    assert ScalarNoise.factor(hidden.observed, public) == pytest.approx(hidden.secret, rel=0.01)


def test_the_spectral_law_holds_within_five_percent():
    for n, m, rank in ((256, 256, 8), (256, 192, 24), (200, 320, 16)):
        rng = np.random.default_rng(rank)
        public, update = 0.05 * rng.standard_normal((n, m)), 1e-3 * rng.standard_normal((n, m))
        mask = 0.05 / np.sqrt(rank) * rng.standard_normal((n, rank)) @ rng.standard_normal((rank, m))
        found, taken = spectral_attack(public + update + mask, public)
        assert taken == rank
        error = np.linalg.norm(found - public - update) / np.linalg.norm(update)
        assert error == pytest.approx(predicted_error(n, m, rank), rel=0.05)


def test_layers_that_share_factors_give_away_more_together():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((6, 64))
    observed, public, private = {}, {}, {}
    for name in "abcd":
        public[name], update = 0.05 * rng.standard_normal((64, 64)), 5e-3 * rng.standard_normal((64, 64))
        private[name] = public[name] + update
        observed[name] = private[name] + 0.05 * rng.standard_normal((64, 6)) @ right

    def error(found: np.ndarray, name: str) -> float:
        return float(np.linalg.norm(found - private[name]) / np.linalg.norm(private[name] - public[name]))

    together = pooled_attack(observed, public, list("abcd"), rank=6)
    alone = {name: spectral_attack(observed[name], public[name], 6)[0] for name in "abcd"}
    assert np.mean([error(together[n], n) for n in "abcd"]) < 0.9 * np.mean([error(alone[n], n) for n in "abcd"])


def test_ranks_for_an_error_and_back():
    assert predicted_error(576, 576, 24) == pytest.approx(0.286, abs=1e-3)
    assert predicted_error(4096, 4096, 24) == pytest.approx(0.108, abs=1e-3)
    assert predicted_error(10, 10, 0) == 0
    assert predicted_error(10, 20, 10) == 1
    for error in (0.1, 0.5, 0.9, 1.0):
        rank = rank_for(64, 96, error)
        assert predicted_error(64, 96, rank) >= error - 1e-9
        assert rank == 0 or predicted_error(64, 96, rank - 1) < error
    for wrong in (0, 1.5):
        with pytest.raises(InputError, match="error"):
            rank_for(8, 8, wrong)
    with pytest.raises(InputError, match="rank 9"):
        predicted_error(8, 8, 9)
    assert apparent_rank(np.array([9.0, 8.0, 7.0, 0.1, 0.09, 0.08, 0.07, 0.06])) == 3
    with pytest.raises(InputError, match="public"):
        spectral_attack(np.zeros((2, 2)), np.zeros((3, 2)))


def test_a_mask_of_full_rank_has_no_gap_and_costs_no_memory():
    mask = HadamardMask(KEY, "a", 96, 80, scale=0.05)
    whole = mask.matrix()
    assert np.linalg.matrix_rank(whole) == 80
    assert whole.std() == pytest.approx(0.05, rel=0.05)
    x = torch.randn(3, 96, dtype=torch.float64)
    assert np.allclose(mask.apply(x).numpy(), x.numpy() @ whole, atol=1e-10)
    private, public = pair()
    found, _ = spectral_attack(private + whole, public, 8)
    assert np.linalg.norm(found - private) > 10 * np.linalg.norm(private - public)
    with pytest.raises(InputError, match="power of two"):
        fwht(torch.ones(3))
    y = torch.randn(2, 16, dtype=torch.float64)
    assert torch.allclose(fwht(fwht(y)), y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 5))
        hidden = protect(model, LoROConfig(rank=2, mask="fwht", seed=0))
    given = torch.randn(4, 12)
    assert torch.allclose(hidden(given), model(given), atol=1e-5)
    with hidden.ree_only() as stolen:
        assert not torch.allclose(stolen(given), model(given), atol=0.05)
    with pytest.raises(InputError, match="mask 'x'"):
        LoROConfig(mask="x")


def test_the_exact_mode_is_exact_and_its_mask_uniform():
    rng = np.random.default_rng(0)
    weight, x = rng.standard_normal((64, 48)), rng.standard_normal((7, 64))
    layer = ExactLinear.of(weight, KEY, "a", rank=4)
    assert np.array_equal(layer(x), layer.plain(x))
    assert np.abs(layer(x) - x @ weight).max() < 0.3
    top = np.bincount((layer.hidden >> np.uint32(29)).ravel(), minlength=8)
    assert top.min() > 250
    assert not np.array_equal(layer.untrusted(quantised(x, 1)[0]).astype(np.int32), layer.plain(x))
    with pytest.raises(InputError, match="rank 0"):
        ExactLinear.of(weight, KEY, "a", rank=0)
    with pytest.raises(InputError, match="do not fit"):
        ExactLinear.of(np.ones((200_000, 1)), KEY, "a", rank=1)


def test_seen_corrections_give_the_mask_away():
    mask = LoRO(4).hide(pair()[0], 0, 3, np.random.default_rng(0)).secret
    x = np.random.default_rng(1).standard_normal((100, 96))
    assert np.allclose(observation_attack(x, x @ mask), mask, atol=1e-8)
    with pytest.raises(InputError, match="equal numbers"):
        observation_attack(x, x[:3] @ mask)


def planted(n: int, seed: int) -> Data:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 12)).astype(np.float32)
    return Data(torch.tensor(x), torch.tensor((x[:, :4] @ np.eye(4)).argmax(1)))


def test_an_unprotected_network_is_stolen_whole_and_a_hidden_one_is_not():
    victim = classifier(4, seed=1, features=12, width=24)
    train(victim, planted(1500, 0), epochs=12, rate=3e-3, seed=0)
    test, few = planted(600, 1), planted(24, 2)
    public = with_weights(
        classifier(4, seed=9, features=12, width=24), weights_of(classifier(4, seed=9, features=12, width=24))
    )
    ways = {one.name: one for one in rivals(2)}
    options = {"epochs": 4, "runs": 2}
    bare = steal(ways["no protection"], victim, public, few, test, **options)
    assert bare.undone == pytest.approx(score(victim, test))
    inside = steal(ways["all inside"], victim, public, few, test, **options)
    black = steal(None, victim, public, few, test, **options)
    assert inside == black
    assert max(black.undone, black.tuned) < 0.8 * bare.undone
    with pytest.raises(InputError, match="runs 0"):
        steal(None, victim, public, few, test, runs=0)


def test_costs_are_those_of_the_formulas():
    shapes = layer_shapes(SHAPES["135M"])
    assert len(shapes) == 210
    assert sum(n * m for n, m in shapes.values()) == 106_168_320
    found = memory(layer_shapes(SHAPES["7B"]))
    assert found["pooled"] < 0.1 * found["per_layer"]
    assert 1e6 < found["pooled"] < 1e8
    measured = timed(SHAPES["135M"], tokens=8, repeats=1)
    assert measured.ratio == pytest.approx(1 + measured.correction / measured.plain)
    assert measured.overlapped >= 1
    with pytest.raises(InputError, match="tokens 0"):
        timed(SHAPES["135M"], tokens=0)


def test_the_threat_report_says_what_is_not_stopped(make_tiny):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights = threat_report(protect(make_tiny("llama").module, LoROConfig(rank=4, seed=0)))
        full = threat_report(protect(make_tiny("llama").module, LoROConfig(rank=4, seed=0, policy="full", mask="fwht")))
    assert "protects" in weights
    assert "rank 8 at most" in weights
    assert "sorted sizes" in full
    assert "no gap in their spectrum" in full
    for text in (weights, full):
        assert "Stealing by queries" in text
        assert "behind a pipe" in text


def test_smoke_reports_every_claim(real_model):
    evidence = study("smoke", Run(), model=real_model)
    found = {finding.id: finding for finding in evidence.findings}
    assert {"exact-logits", "exact-tokens", "useless-alone", "earlier-broken", "loro-as-black-box"} <= set(found)
    assert {"rank-gives-it-away", "full-rank-holds", "spectral-law", "latency", "memory"} <= set(found)
    for name in ("exact-logits", "exact-tokens", "useless-alone", "seen-corrections", "spectral-law", "memory"):
        assert found[name].verdict == "holds", name
    with pytest.raises(InputError, match="scale 'huge'"):
        study("huge", Run())
