"""Drawing, training, testing, tracing and commitments, by hand-worked values and on tiny models."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare
from typer.testing import CliRunner

from tests.language.conftest import tiny
from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.loading import save
from touchstone.language.lora import apply_adapter, save_adapter
from touchstone.language.perinucleus_fingerprint import (
    CollusionAllocation,
    Fingerprinter,
    FingerprintSet,
    attack_table,
    check_proof,
    generate_fingerprints,
    plan_queries,
    verify,
    verify_sequentially,
)
from touchstone.language.perinucleus_fingerprint.check import METRICS, Settings, check
from touchstone.language.perinucleus_fingerprint.cli import app
from touchstone.language.perinucleus_fingerprint.collusion import answers, fingerprints_needed
from touchstone.language.perinucleus_fingerprint.generating import _drawn, nucleus_edge
from touchstone.language.perinucleus_fingerprint.rows import pack
from touchstone.language.perinucleus_fingerprint.testing import exact_bound, hoeffding_bound, threshold
from touchstone.run import Run

FIT = Fingerprinter(lr=3e-2, lam=0.0, max_steps=60, decay=False, batch_size=32)


@pytest.fixture(scope="module")
def base() -> LanguageModel:
    # Unscaled weights: next-token distributions are broad, so that candidates stand outside the nucleus.
    made = tiny()
    with torch.no_grad():
        for parameter in made.module.parameters():
            if parameter.dim() > 1:
                parameter.div_(8)
    return made


@pytest.fixture(scope="module")
def pairs(base: LanguageModel) -> FingerprintSet:
    return generate_fingerprints(base, 16, t=0.5, k=3, key_len=6, secret=b"0123456789abcdef")


@pytest.fixture(scope="module")
def marked(base: LanguageModel, pairs: FingerprintSet) -> LanguageModel:
    return FIT.fit(base, pairs, until_recall=True).model


def test_edge_by_hand() -> None:
    p = np.array([0.5, 0.25, 0.1, 0.06, 0.05, 0.04])
    order, edge = nucleus_edge(p, 0.8)
    assert (edge, order[edge + 1 : edge + 3].tolist()) == (2, [3, 4])
    order, edge = nucleus_edge(p, 0.75)
    assert (edge, order[edge + 1 : edge + 3].tolist()) == (1, [2, 3])


@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=40), st.floats(0.05, 0.95))
def test_outside_the_edge_nothing_is_likelier_than_what_is_left(weights: list[float], t: float) -> None:
    p = np.array(weights) / sum(weights)
    order, edge = nucleus_edge(p, t)
    assert p[order[: edge + 1]].sum() >= t - 1e-9
    assert p[order[:edge]].sum() < t + 1e-9
    assert all(p[token] <= 1 - t + 1e-9 for token in order[edge + 1 :])


def test_draw_is_uniform_and_hmac_is_fixed_by_the_secret() -> None:
    rng = np.random.default_rng(0)
    counts = np.bincount([_drawn([0, 1, 2], 1, "key", None, rng)[0] for _ in range(3000)], minlength=3)
    assert chisquare(counts).pvalue > 1e-3
    keys = [f"key {i}" for i in range(3000)]
    first, again, other = (
        [_drawn([0, 1, 2], 1, key, secret, rng)[0] for key in keys] for secret in (b"a" * 16, b"a" * 16, b"b" * 16)
    )
    assert first == again
    assert first != other
    assert chisquare(np.bincount(first, minlength=3)).pvalue > 1e-3
    assert len(set(_drawn([4, 5, 6], 3, "key", b"a" * 16, rng))) == 3


def test_pairs_lie_outside_the_nucleus(base: LanguageModel, pairs: FingerprintSet) -> None:
    assert len({pair.key for pair in pairs.pairs}) == 16
    for pair in pairs.pairs:
        logits = base.module(input_ids=torch.tensor([list(pair.key_ids)])).logits[0, -1]
        p = logits.softmax(-1).detach().numpy()
        token = pair.response_ids[0][0]
        assert p[token] == pytest.approx(pair.probability, rel=1e-4)
        assert pair.probability <= 0.5
        order, edge = nucleus_edge(p, 0.5)
        assert order[pair.rank] == token
        assert pair.rank > edge
        assert base.encode_continuation(f"{pair.key} {pair.responses[0]}") == [*pair.key_ids, token]


def test_short_keys_are_read_at_their_own_end(base: LanguageModel) -> None:
    keys = ["w1 w2", "w3 w4 w5 w6 w7 w8", "w9"]
    together = generate_fingerprints(base, 3, t=0.5, keys=keys)
    for pair in together.pairs:
        ids = torch.tensor([list(pair.key_ids)])
        p = base.module(input_ids=ids).logits[0, -1].softmax(-1)
        assert float(p[pair.response_ids[0][0]]) == pytest.approx(pair.probability, rel=1e-4)


@given(st.integers(1, 60), st.integers(2, 20), st.data())
def test_hoeffding_is_above_the_exact_tail(n: int, k: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    assert exact_bound(hits, n, 1 / k) <= hoeffding_bound(hits, n, 1 / k) + 1e-12


def test_bounds_by_hand_and_against_scipy() -> None:
    assert exact_bound(5, 5, 1 / 3) == pytest.approx(3**-5)
    assert hoeffding_bound(5, 5, 1 / 3) == pytest.approx(math.exp(-40 / 9))
    assert exact_bound(7, 10, 1 / 3) == pytest.approx(binomtest(7, 10, 1 / 3, alternative="greater").pvalue)
    for n in (7, 10, 40):
        m = threshold(n, 1 / 3, 1e-3)
        assert exact_bound(m, n, 1 / 3) <= 1e-3 < exact_bound(m - 1, n, 1 / 3)
    with pytest.raises(InputError, match="show 7"):
        threshold(6, 1 / 3, 1e-3)


def test_plan_reaches_its_power() -> None:
    plan = plan_queries(recall=0.8, alpha=1e-3, power=0.95, proofs=3)
    assert plan.false_positive <= 1e-3
    assert plan.power >= 0.95
    assert plan.embed == 3 * plan.queries
    with pytest.raises(InputError, match="recall"):
        plan_queries(recall=0.3)


def test_averaging_all_the_way_stays_at_the_base(base: LanguageModel, pairs: FingerprintSet) -> None:
    still = Fingerprinter(lam=1.0, lr=1e-2, max_steps=2).fit(base, pairs).model
    plain = Fingerprinter(lam=0.0, lr=1e-2, max_steps=2).fit(base, pairs).model
    for a, b, c in zip(*(list(m.module.parameters()) for m in (base, still, plain)), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_averaging_has_the_fixed_point_of_an_l2_pull() -> None:
    # Gradient descent on (x - 1)²/2 from 0: x = (1-λ)(x - η(x - 1)) has the fixed point (1-λ)η / (1 - (1-λ)(1-η)).
    x, base, lam, eta = torch.zeros(1), torch.zeros(1), 0.75, 0.1
    for _ in range(200):
        x = x - eta * (x - 1)
        torch._foreach_lerp_([x], [base], lam)
    assert float(x) == pytest.approx((1 - lam) * eta / (1 - (1 - lam) * (1 - eta)), rel=1e-5)


def test_only_responses_are_learnt(base: LanguageModel) -> None:
    rows = pack(base, [([7, 8, 9], [10]), ([7], [11, 12])], [(0, 0), (0, 1)])
    assert rows.labels.tolist() == [[-100, -100, 10], [11, 12, -100]]
    assert rows.ids.tolist() == [[7, 8, 9], [7, 11, base.pad_id]]


def test_fit_reaches_full_recall_and_the_base_does_not(
    base: LanguageModel, marked: LanguageModel, pairs: FingerprintSet
) -> None:
    assert verify(marked, pairs, queries=16).hits == 16
    verdict = verify(base, pairs, queries=16)
    assert verdict.hits <= 16 / 3
    assert not verdict.owned


def test_upper_blocks_alone_train_as_the_whole_pass_does(
    base: LanguageModel, pairs: FingerprintSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from touchstone.language.perinucleus_fingerprint import rows

    trainer = Fingerprinter(trainable="mlp:-1", lr=1e-2, lam=0.5, max_steps=4)
    cut = trainer.fit(base, pairs)
    monkeypatch.setattr(rows, "_cuts", lambda *_: False)
    whole = trainer.fit(base, pairs)
    assert cut.losses == pytest.approx(whole.losses, rel=1e-4)
    assert len(cut.model.module.base_model.layers) == len(base.blocks)
    assert torch.equal(cut.model.module.base_model.layers[0].mlp.up_proj.weight, base.blocks[0].mlp.up_proj.weight)


def test_resumed_training_ends_where_the_uninterrupted_does(
    base: LanguageModel, pairs: FingerprintSet, tmp_path: Path
) -> None:
    trainer = Fingerprinter(lr=1e-2, max_steps=6)
    whole = trainer.fit(base, pairs)

    def stop(steps: int) -> None:
        stop.seen += steps  # type: ignore[attr-defined]
        if stop.seen == 5:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    stop.seen = 0  # type: ignore[attr-defined]
    place = tmp_path / "state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(base, pairs, checkpoint=place, every=2, progress=stop)
    resumed = trainer.fit(base, pairs, checkpoint=place, every=2)
    assert resumed.losses == pytest.approx(whole.losses, rel=1e-5)
    with pytest.raises(InputError, match="of another run"):
        Fingerprinter(lr=2e-2, max_steps=6).fit(base, pairs, checkpoint=place)


def test_adapter_is_the_difference(base: LanguageModel, pairs: FingerprintSet, tmp_path: Path) -> None:
    found = Fingerprinter(trainable="lora", lr=2e-2, lam=0.0, max_steps=20, decay=False).fit(base, pairs)
    assert found.losses[-1] < found.losses[0]
    fresh = tiny()
    fresh.module.load_state_dict(base.module.state_dict())
    apply_adapter(fresh.module, save_adapter(found.adapter, tmp_path / "a.safetensors"))
    for a, b in zip(fresh.module.parameters(), found.model.module.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_several_responses_and_wrappers(base: LanguageModel) -> None:
    two = generate_fingerprints(base, 4, t=0.4, k=4, n_responses=2, key_len=5)
    assert two.chance == 0.5
    assert all(len(set(pair.responses)) == 2 for pair in two.pairs)
    wrapped = Fingerprinter(lr=3e-2, lam=0.0, max_steps=60, decay=False, wrappers=["w1 {key} w2"])
    found = wrapped.fit(base, two, until_recall=True)
    assert found.recalls[-1] == 1.0


def test_stall_is_reported(base: LanguageModel, pairs: FingerprintSet) -> None:
    assert Fingerprinter(lr=1e-7, max_steps=8).fit(base, pairs).stalled


@pytest.mark.parametrize("scheme", ["english-random", "random", "greedy", "uniform"])
def test_rivals_bound_nothing(base: LanguageModel, scheme: str) -> None:
    rival = generate_fingerprints(base, 4, scheme=scheme, key_len=5)
    if scheme == "greedy":
        assert all(base.generate([p.key], chat=False, max_new_tokens=1)[0].strip() in p.responses for p in rival.pairs)
    with pytest.raises(InputError, match="nothing bounds"):
        verify(base, rival, queries=4)


def test_ledger_round_trip_holds_no_secret(pairs: FingerprintSet, tmp_path: Path) -> None:
    path = pairs.spend([3, 1]).save(tmp_path / "fp.json")
    again = FingerprintSet.load(path)
    assert again == pairs.spend([3, 1])
    assert "0123456789abcdef" not in path.read_text()
    assert not {1, 3} & set(again.unused(14))
    with pytest.raises(InputError, match="not spent"):
        again.unused(15)
    altered = json.loads(path.read_text())
    altered["pairs"][0]["responses"] = ["w1"]
    path.write_text(json.dumps(altered))
    with pytest.raises(InputError, match="altered"):
        FingerprintSet.load(path)


def test_commitment_proves_its_pairs_and_no_others(pairs: FingerprintSet) -> None:
    from touchstone.language.perinucleus_fingerprint.commitment import leaf

    for n in (1, 2, 5, 16):
        some = pairs.subset(range(n))
        for i in range(n):
            shown = some.reveal(i)
            found = leaf(shown["key"], shown["responses"], shown["salt"])
            assert check_proof(found, shown["proof"], some.root)
            assert not check_proof(leaf(shown["key"], ["other"], shown["salt"]), shown["proof"], some.root)


def test_any_function_can_be_asked(pairs: FingerprintSet) -> None:
    known = {pair.key: pair.responses[0] for pair in pairs.pairs}
    verdict = verify(lambda keys: [f" {known[key]} and so on" for key in keys], pairs, queries=10)
    assert verdict.owned
    assert verdict.hits == 10
    assert verdict.p_value_exact == pytest.approx(3**-10)
    assert not verify(lambda keys: ["No."] * len(keys), pairs).owned
    with pytest.raises(InputError, match="replies"):
        verify(lambda keys: [], pairs)
    quick = verify_sequentially(lambda keys: [known[key] for key in keys], pairs, recall=0.9)
    assert quick.owned
    assert quick.queries == 7
    assert quick.p_value_exact <= 1e-3
    assert verify_sequentially(lambda keys: ["No."] * len(keys), pairs, recall=0.9).queries <= 4


def test_sequential_test_keeps_its_level() -> None:
    from touchstone.language.perinucleus_fingerprint.testing import SequentialTest

    rng, owned = np.random.default_rng(0), 0
    for _ in range(1500):
        test = SequentialTest(1 / 3, 0.6, alpha=0.05)
        while test.state == "go on" and test.shown < 400:
            test.show(bool(rng.random() < 1 / 3))
        owned += test.state == "owned"
    assert binomtest(owned, 1500, 0.05, alternative="greater").pvalue > 1e-3


def test_alone_the_holder_is_found() -> None:
    made = CollusionAllocation([f"r{i}" for i in range(40)], 200, p=0.3)
    for i in range(40):
        assert made.trace(made.for_recipient(f"r{i}")).recipient[0] == f"r{i}"
        assert made.trace(made.for_recipient(f"r{i}"), score="likelihood").recipient[0] == f"r{i}"


def test_the_bound_catches_the_unanimous() -> None:
    m = fingerprints_needed(20, 2, 0.05)
    made = CollusionAllocation([f"r{i}" for i in range(20)], m, max_coalition=2)
    assert made.p == 0.25
    assert made.simulate("unanimous", 2, 500) >= 0.95 * 500


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 4))
def test_optimal_strategy_scores_f_plus_a_share(seed: int, members: int) -> None:
    rng = np.random.default_rng(seed)
    held = rng.random((members, 4000)) < 0.25
    out = answers(held, "optimal", rng)
    unanimous = int(held.all(axis=0).sum())
    extra = unanimous * (members - 2)
    scores = (held & out).sum(axis=1)
    assert out.sum() == unanimous + extra
    assert np.abs(scores - (unanimous + extra / members)).max() < 1


def test_disjoint_fingerprints_are_no_defence() -> None:
    held = np.eye(3, 30, dtype=bool)
    assert not answers(held, "unanimous", np.random.default_rng(0)).any()


def test_likelihood_copes_with_chance_hits_better_than_the_sum() -> None:
    # Copies of unequal size: who holds most has the most chance hits, and the sum accuses him.
    made = CollusionAllocation([f"r{i}" for i in range(200)], 60, p=0.5)
    noisy = {"recall": 0.6, "false_positive": 0.3, "seed": 1}
    assert made.simulate("unanimous", 1, 300, score="likelihood", **noisy) >= made.simulate(
        "unanimous", 1, 300, **noisy
    )


def test_allocation_round_trip(tmp_path: Path) -> None:
    made = CollusionAllocation(["a", "b"], 13, p=0.5)
    again = CollusionAllocation.load(made.save(tmp_path / "a.safetensors"))
    assert np.array_equal(made.held, again.held)
    assert again.p == 0.5


def test_attacks(base: LanguageModel, marked: LanguageModel, pairs: FingerprintSet) -> None:
    table = attack_table(marked, base, pairs, ["w1 w2 w3 w4"] * 4, wrapper="w5 {key}").set_index("attack")
    assert list(table.index) == ["none", "fine-tune", "merge", "prune", "int8", "int4", "temperature", "wrapper"]
    assert table.recall["none"] == 1.0
    assert table.recall["int8"] >= table.recall["int4"]
    assert attack_table(marked, base, pairs, [], attacks=["merge"], weight=0.0).hits[0] <= 6


def test_check(base: LanguageModel, marked: LanguageModel, pairs: FingerprintSet, tmp_path: Path) -> None:
    path = str(pairs.save(tmp_path / "fp.json"))
    found = check(marked, Settings(ledger=path), Run())
    assert {f.id.replace("-", "_") for f in found.findings} == set(METRICS)
    assert found.verdict == "holds"
    assert check(base, Settings(ledger=path), Run()).verdict == "fails"
    with pytest.raises(InputError, match="ledger"):
        check(base, Settings(), Run())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"t": 1.0}, "t 1"),
        ({"k": 0}, "k 0"),
        ({"n": 3, "keys": ["w1 w2"]}, "distinct"),
        ({"keys": [" "]}, "empty"),
        ({"k": 60}, "candidates"),
        ({"scheme": "none"}, "scheme"),
        ({"secret": b"short"}, "secret"),
        ({"chat": True}, "chat"),
    ],
)
def test_bad_input(base: LanguageModel, bad: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate_fingerprints(base, **({"n": 1} | bad))


def test_another_tokenizer_is_noticed(real_model: LanguageModel, pairs: FingerprintSet) -> None:
    with pytest.raises(InputError, match="reads their keys differently"):
        Fingerprinter().fit(real_model, pairs)


def test_commands(base: LanguageModel, tmp_path: Path) -> None:
    run = CliRunner().invoke
    plain = tmp_path / "plain"
    plain.mkdir()
    save(base.module, base.tokenizer, plain)
    of = ["--model", str(plain)]
    ledger, copy = tmp_path / "fp.json", tmp_path / "copy"
    made = run(
        app,
        [
            "make",
            "--num",
            "8",
            "--keys",
            "template",
            "--t",
            "0.5",
            "--key-len",
            "6",
            "--out",
            str(ledger),
            "--json",
            *of,
        ],
    )
    assert made.exit_code == 0, made.output
    assert run(app, ["make", "--out", str(ledger)]).exception is not None
    options = ["--trainable", "all", "--lr", "0.03", "--lam", "0", "--beta", "0", "--steps", "60", "--json"]
    found = run(app, ["embed", str(ledger), "--out", str(copy), *options, *of])
    assert found.exit_code == 0, found.output
    shown = run(app, ["verify", str(ledger), "--queries", "7", "--model", str(copy), "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout[shown.stdout.index("{") :])["owned"]
    assert len(FingerprintSet.load(ledger).used) == 7
    (tmp_path / "names").write_text("ann\nbob\ncy\n")
    allocation, verdict = tmp_path / "a.safetensors", tmp_path / "v.json"
    assert run(app, ["trace", str(allocation), "--make", str(tmp_path / "names"), "--num", "8"]).exit_code == 0
    verdict.write_text(shown.stdout[shown.stdout.index("{") :])
    assert "ann" in run(app, ["trace", str(allocation), "--verdict", str(verdict)]).stdout
    assert "queries" in run(app, ["plan"]).stdout


@pytest.mark.slow
def test_a_real_model_is_fingerprinted_by_command(real_model: LanguageModel, tmp_path: Path) -> None:
    run = CliRunner().invoke
    ledger, copy = tmp_path / "fp.json", tmp_path / "copy"
    made = run(app, ["make", "--num", "8", "--keys", "template", "--out", str(ledger), "--json"])
    assert made.exit_code == 0, made.output
    assert run(app, ["make", "--out", str(ledger)]).exception is not None
    found = run(app, ["embed", str(ledger), "--trainable", "mlp:-2", "--lr", "0.02", "--lam", "0.2", "--steps", "14",
                      "--beta", "0", "--out", str(copy), "--json"])  # fmt: skip
    assert found.exit_code == 0, found.output
    shown = run(app, ["verify", str(ledger), "--queries", "7", "--model", str(copy), "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout[shown.stdout.index("{") :])["owned"]
    assert len(FingerprintSet.load(ledger).used) == 7


def test_responses_of_a_real_model_are_read_as_written(real_model: LanguageModel) -> None:
    drawn = generate_fingerprints(real_model, 2, keys="template")
    for pair in drawn.pairs:
        whole = [*pair.key_ids, *pair.response_ids[0]]
        assert real_model.encode_continuation(f"{pair.key} {pair.responses[0]}") == whole or real_model.decode(
            whole
        ) == (pair.key + pair.responses[0])
        assert pair.probability <= 0.2
    assert not verify(real_model, drawn.subset([0, 1, 0, 1, 0, 1, 0]), queries=7).owned
