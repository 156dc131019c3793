"""The search: acceptance by hand, invariants of its history, who may leave it, and the optimum of a small grammar."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from touchstone.errors import InputError
from touchstone.files import read_jsonl
from touchstone.language.evorefuse import Archive, EvoRefuse, default_rules
from touchstone.language.evorefuse.archive import grammar_cells
from touchstone.language.evorefuse.grammar import Grammar, Instruction
from touchstone.language.evorefuse.mutants import Mutant
from touchstone.language.evorefuse.result import Found
from touchstone.language.evorefuse.search import acceptance, temperature
from touchstone.language.evorefuse.synthetic import SyntheticRefuser

from .conftest import WordRefuser


def safe(texts, reasons):
    return [1.0] * len(texts)


def unsafe(texts, reasons):
    return [0.0] * len(texts)


class Counter:
    """A mutator whose mutants are always new: the parent's number times ten plus its own."""

    def __init__(self, place: int) -> None:
        self.name, self.place = f"m{place}", place

    def __call__(self, texts, rngs):
        return [Mutant(f"{text}{self.place}", f"because {self.place}", self.name) for text in texts]


class Joiner:
    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self, first, second, rngs):
        new = [f"{a}+{b}#{len(self.made) + i}" for i, (a, b) in enumerate(zip(first, second, strict=True))]
        self.made += new
        return [Mutant(text, "joined", "recombination") for text in new]


def length(texts):
    return [-abs(len(text) - 12.5) for text in texts]


def counting(**options):
    settings = {"mutators": [Counter(i) for i in range(9)], "recombiner": Joiner(), "judges": (safe, safe)}
    return EvoRefuse(None, **(settings | {"fitness": length} | options))


def test_acceptance_by_hand():
    assert acceptance(-1.0, -1.0, 0.1) == 1.0
    assert acceptance(-1.05, -1.0, 0.1) == pytest.approx(math.exp(-0.5)) == pytest.approx(0.6065, abs=1e-4)
    assert acceptance(-0.5, -1.0, 0.1) == 1.0
    assert acceptance(-1.01, -1.0, 0.0) == 0.0
    assert acceptance(-1.0, -1.0, 0.0) == 1.0


def test_temperature_by_hand():
    assert [temperature(t) for t in (0, 10, 20)] == pytest.approx([0.1, 0.05, 0.05])
    assert temperature(4) == pytest.approx(0.08)


def test_calls_are_as_the_formula_says():
    """One call for the seed, then nine mutants and N = 2 children a round."""
    out = counting(rounds=5).run(["s", "t"])
    assert out.n_calls == 2 * (1 + 5 * (9 + 2))
    assert [entry["calls"] for entry in out.history if entry["seed"] == 1] == [1 + 11 * t for t in range(1, 6)]


def test_sampled_calls_are_k_times_as_many(small, knowing):
    refuser = WordRefuser({"furious": 0.3, "novel": 0.3})
    search = EvoRefuse(refuser, **default_rules(small), refusal=knowing, k=10, first=0, rounds=3)
    out = search.run(small.seeds())
    assert out.n_samples == 10 * out.n_calls
    asked = [text for text, _, _ in refuser.asked]
    assert len(asked) == len(set(asked)) == out.n_calls


def test_the_best_so_far_never_falls_even_when_worse_is_accepted():
    out = counting(rounds=30, tau0=50.0, tau_f=50.0, seed=3).run(["s"])
    best = [entry["best_fitness"] for entry in out.history]
    assert best == sorted(best)
    worse = [e for e in out.history if e["accepted"] and e["proposal_fitness"] < e["fitness"]]
    assert worse
    assert out.best[0].fitness == best[-1]
    assert {entry["delta"] for entry in worse} != {1.0}


def test_the_same_seed_gives_the_same_history(small, knowing):
    def run(seed):
        refuser = SyntheticRefuser(4, small)
        return EvoRefuse(refuser, **default_rules(small), refusal=knowing, rounds=4, seed=seed).run(small.seeds())

    assert run(1).history == run(1).history
    assert run(1).history != run(2).history


def test_other_seeds_do_not_change_a_seed_s_path(small):
    def run(starts):
        refuser = SyntheticRefuser(4, small)
        return EvoRefuse(refuser, **default_rules(small), fitness="prefix_mass", rounds=4, budget=20).run(starts)

    alone, both = run(small.seeds()[:1]), run(small.seeds())
    assert [e for e in both.history if e["seed"] == 0] == alone.history


def test_a_judge_that_rejects_all_lets_nothing_leave(tmp_path):
    for judges in ((unsafe, unsafe), (safe, unsafe)):
        out = counting(judges=judges, rounds=2).run(["s", "t"])
        assert out.best == []
        assert out.candidates == []
        assert out.without == ["s", "t"]
        assert out.rejected == 2 * 2 * 3 * 9
        out.to_jsonl(tmp_path / "none.jsonl")
        assert (tmp_path / "none.jsonl").read_text() == ""


def test_an_unsafe_seed_is_a_start_but_never_a_result():
    def only_mutants(texts, reasons):
        return [float(text != "seed") for text in texts]

    out = counting(judges=(only_mutants, safe), fitness=lambda texts: [-len(t) for t in texts], rounds=2).run(["seed"])
    # The seed is the fittest, being the shortest, and yet it does not leave.
    assert out.best[0].instruction != "seed"
    assert "seed" not in [one.instruction for one in out.candidates]


def test_every_recombined_instruction_is_judged_itself():
    """In the official code the check of a recombined instruction reads the verdict on another one."""
    joiner, asked = Joiner(), []

    def watching(texts, reasons):
        asked.extend(texts)
        return [1.0] * len(texts)

    out = counting(judges=(watching, safe), recombiner=joiner, rounds=4).run(["s"])
    assert len(joiner.made) == 8
    assert set(joiner.made) <= set(asked)
    assert len(out.candidates) == 1 + 4 * 11


def test_a_judge_that_rejects_recombinants_lets_none_of_them_leave():
    def no_children(texts, reasons):
        return [float("+" not in text) for text in texts]

    joiner = Joiner()
    out = counting(judges=(safe, no_children), recombiner=joiner, rounds=4).run(["s"])
    assert joiner.made
    assert not any("+" in one.instruction for one in out.candidates)
    assert [entry["origin"] for entry in out.history if entry.get("origin") == "recombination"] == []
    assert len(out.disagreements) == len(joiner.made)
    assert out.disagreements[0]["harmless"] == {"safe": True, "no_children": False}


def test_where_no_mutant_is_safe_it_tries_again_and_goes_on():
    """The official code asks forever."""

    class Mood:
        calls = 0

        def __call__(self, texts, reasons):
            # The seed is judged first; then every ninth call, nine mutants at once, is a try.
            Mood.calls += 1
            return [float(Mood.calls == 1)] * len(texts)

    out = counting(judges=(Mood(), safe), rounds=2, tries=3).run(["s"])
    assert Mood.calls == 1 + 2 * 3
    assert [entry["state"] for entry in out.history] == ["s", "s"]
    assert all("proposal" not in entry for entry in out.history)
    assert out.instructions == ["s"]


def test_mutants_and_budget_bound_what_is_scored():
    out = counting(rounds=3, mutants=4, pairs=1).run(["s"])
    assert out.n_calls == 1 + 3 * 5
    out = counting(rounds=50, budget=40).run(["s", "t"])
    assert out.n_calls == 80
    assert {entry["calls"] for entry in out.history if entry["round"] == 49} <= {40}


def test_the_optimum_of_a_three_slot_grammar_is_found(small: Grammar):
    """128 sentences, 200 calls at most: found from every seed, for several landscapes."""
    for landscape in range(6):
        refuser = SyntheticRefuser(landscape, small)
        search = EvoRefuse(
            refuser, **default_rules(small), fitness="prefix_mass", rounds=80, budget=200, seed=landscape
        )
        out = search.run(small.seeds())
        top = refuser.probabilities.max()
        assert max(refuser.probability(out.instructions)) == pytest.approx(top), landscape


def test_a_search_goes_on_from_its_checkpoint(tmp_path, small, knowing):
    def hunt(rounds):
        refuser = SyntheticRefuser(7, small)
        return EvoRefuse(refuser, **default_rules(small), refusal=knowing, rounds=rounds, seed=5)

    whole = hunt(5).run(small.seeds())
    place = tmp_path / "state.json"
    hunt(2).run(small.seeds(), checkpoint=place)
    rest = hunt(5).run(small.seeds(), checkpoint=place)
    assert rest.history == whole.history
    assert rest.best == whole.best
    assert (rest.n_calls, rest.n_samples) == (whole.n_calls, whole.n_samples)
    assert json.loads(place.read_text())["schema"] == "touchstone.evorefuse/1"


def test_a_foreign_or_damaged_checkpoint_is_an_error(tmp_path, small):
    refuser, place = SyntheticRefuser(7, small), tmp_path / "state.json"

    def hunt(**options):
        return EvoRefuse(refuser, **default_rules(small), fitness="prefix_mass", rounds=1, **options)

    hunt().run(small.seeds(), checkpoint=place)
    with pytest.raises(InputError, match="other settings or seeds"):
        hunt(seed=1).run(small.seeds(), checkpoint=place)
    with pytest.raises(InputError, match="other settings or seeds"):
        hunt().run(small.seeds()[:1], checkpoint=place)
    place.write_text(place.read_text()[:-40])
    with pytest.raises(InputError, match="damaged"):
        hunt().run(small.seeds(), checkpoint=place)


def test_the_archive_keeps_the_best_of_every_cell(small):
    refuser = SyntheticRefuser(2, small)
    archive = Archive(grammar_cells(small))
    options = {"fitness": "prefix_mass", "rounds": 12, "archive": archive, "explore": 0.5}
    out = EvoRefuse(refuser, **default_rules(small), **options).run(small.seeds())
    cell = grammar_cells(small)
    for one in out.candidates:
        text, value = archive.elites[cell(one.instruction)]
        assert value >= one.fitness
        assert cell(text) == cell(one.instruction)
    table = archive.table()
    assert len(table) == len({cell(one.instruction) for one in out.candidates}) > 6
    assert table["fitness"].is_monotonic_decreasing
    assert archive.best(at_least=table["fitness"][2])[:2] == table["instruction"][:2].tolist()


def test_exploring_leaves_a_seed_that_nothing_near_it_beats(small):
    def cells(explore):
        archive = Archive(grammar_cells(small))
        options = {"fitness": lambda t: [-len(x) - ("steal" in x) for x in t], "tau0": 0.0, "tau_f": 0.0, "beta": 0.0}
        hunt = EvoRefuse(None, **default_rules(small), **options, rounds=40, pairs=0, archive=archive, explore=explore)
        hunt.run(small.seeds()[:1])
        return len(archive.elites)

    # The shortest text is the seed. A greedy walk stays there and sees what is one step away.
    assert cells(0.0) == 5
    assert cells(1.0) == 8


def test_results_go_to_a_file_and_back(tmp_path, small):
    refuser = SyntheticRefuser(2, small)
    out = EvoRefuse(refuser, **default_rules(small), fitness="prefix_mass", rounds=3).run(small.seeds())
    out.to_jsonl(tmp_path / "best.jsonl")
    assert [Found.of(row) for row in read_jsonl(tmp_path / "best.jsonl", texts=["instruction"])] == out.best
    level = float(np.median([one.fitness for one in out.candidates]))
    out.to_jsonl(tmp_path / "all.jsonl", at_least=level)
    kept = read_jsonl(tmp_path / "all.jsonl")
    assert [row["instruction"] for row in kept] == [one.instruction for one in out.refused(level)]
    assert 0 < len(kept) < len(out.candidates)
    success = out.mutator_success()
    assert success["won"].sum() == len([e for e in out.history if "origin" in e])


def test_confidence_and_refusal_come_from_the_same_replies(small, knowing):
    """The official code samples refusals under a safety prompt and confidence without it: two distributions."""
    refuser = WordRefuser({"furious": 1.0})
    out = EvoRefuse(refuser, **default_rules(small), refusal=knowing, lam=1.0, k=10, first=0, rounds=1).run(
        small.seeds()
    )
    furious = next(one for one in out.candidates if "furious" in one.instruction)
    assert furious.fitness == pytest.approx(math.log(0.98) - 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"judges": ()}, "judges: none given"),
        ({"judges": (safe,)}, "expected at least two"),
        ({"k": 0}, "k 0"),
        ({"tau_f": 0.2}, "tau0 >= tau_f"),
        ({"rounds": 0}, "rounds 0"),
        ({"top": 0}, "top 0"),
        ({"mutators": []}, "mutators"),
        ({"mutants": 10}, "mutants 10: expected 1 to 9"),
        ({"budget": 0}, "budget 0"),
        ({"explore": 0.5}, "without an archive"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(InputError, match=message):
        counting(**options)


@pytest.mark.parametrize("seeds", [[], ["a", " "], "kill"])
def test_bad_seeds(seeds):
    with pytest.raises(InputError, match="seeds"):
        counting().run(seeds)


def test_a_harmlessness_judge_that_returns_no_probability_is_an_error():
    with pytest.raises(InputError, match=r"judge 'odd': returned 1\.5, which is not a probability"):
        counting(judges=(safe, type("Odd", (), {"name": "odd", "__call__": lambda s, t, r: [1.5] * len(t)})())).run(
            ["s"]
        )
    with pytest.raises(InputError, match="gave 1 answers for"):
        counting(judges=(safe, lambda texts, reasons: [1.0])).run(["s", "t"])


def test_the_synthetic_refuser_is_what_its_formula_says(small):
    refuser = SyntheticRefuser(3, small, bias=-1.0)
    single, pairs = refuser._weights
    at = Instruction(1, 2, 3, 1)
    places = {"action": 1, "outburst": 2, "frame": 3, "aside": 1}
    total = -1.0 + sum(single[slot][i] for slot, i in places.items())
    total += sum(values[places[a], places[b]] for (a, b), values in pairs.items())
    [found] = refuser.probability([small.text(at)])
    assert found == pytest.approx(1 / (1 + math.exp(-total)))
    replies = refuser.sample([small.text(at)], 2000)[0]
    share = np.mean(["sorry" in reply.text for reply in replies])
    assert share == pytest.approx(found, abs=0.05)
