"""The loop and its rivals on the organism whose bypass is known: success, budgets, fairness, repeatability."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
import torch

from touchstone.errors import InputError
from touchstone.language import LanguageModel
from touchstone.language.largo import GCG, Behaviour, BestOfN, Genetic, Largo, NearestToken, Uniform
from touchstone.language.largo.latent import embedding_table, start
from touchstone.language.largo.result import digest, read_behaviours, write_latents, write_results
from touchstone.language.largo.study_bypass import ARMS, planted
from touchstone.language.largo.study_bypass import arm as arm_of
from touchstone.language.refusal import RefusalJudge
from touchstone.tensors import read_tensors


@pytest.fixture(scope="session")
def subject():
    return planted(3)


def test_all_keys_break_every_guard_and_two_of_them_hardly_any(subject):
    attack = arm_of("LARGO", subject, budget=None, seed=0)
    keys, wrong = subject.language.keys, 0
    for one in subject.behaviours:
        trial = attack.trial(one)
        assert trial.replies([" ".join(keys)])[0].broke
        assert not any(reply.broke for reply in trial.replies(["", *keys]))
        wrong += sum(reply.broke for reply in trial.replies([" ".join(pair) for pair in combinations(keys, 2)]))
    assert wrong <= 1


def test_largo_breaks_guards_and_says_with_what(subject):
    attack = arm_of("LARGO", subject, budget=6000, seed=0)
    results = attack.run(subject.behaviours)
    assert all(one.broke for one in results)
    for one in results:
        assert one.attempts[-1].text == one.text
        assert subject.language.is_open(one.text) or len(set(one.text.split()) & set(subject.language.keys)) == 2
        assert one.checks == len(one.attempts) == one.rounds
        assert one.broke_within(one.checks)
        assert not one.broke_within(one.checks - 1)
        assert one.latent.shape == (4, 64)
        # The latent is optimised: within a round its loss falls.
        assert all(first > last for first, last in (r["latent"] for r in one.losses))


def test_words_of_an_empty_latent_break_nothing_at_the_same_cost(subject):
    results = arm_of("zero latent", subject, budget=2000, seed=0).run(subject.behaviours)
    assert not any(one.broke for one in results)
    assert all(one.tokens_forward >= 2000 for one in results)


@pytest.mark.parametrize("name", list(ARMS))
def test_every_arm_keeps_its_budget_and_repeats(subject, name):
    def run(seed: int):
        [one] = arm_of(name, subject, budget=400, seed=seed).run(subject.behaviours[:1])
        return one

    first, again = run(0), run(0)
    assert first.record(keep_text=True) == again.record(keep_text=True)
    # No round begins beyond the budget: what it spends before the last round is within it.
    before_last = first.losses[-2]["tokens_forward"] if len(first.losses) > 1 else 0
    assert before_last < 400
    assert first.broke or first.tokens_forward >= 400
    assert [a.checks for a in first.attempts] == list(range(1, len(first.attempts) + 1))


def test_spent_tokens_are_those_that_a_hook_sees(subject):
    seen = 0

    def hook(module, arguments, output):
        nonlocal seen
        states = output[0] if isinstance(output, tuple) else output
        seen += states.shape[0] * states.shape[1] * (3 if states.requires_grad else 1)

    attack = arm_of("LARGO", subject, budget=None, seed=0)
    attack.rounds = attack.restarts = 1
    trial = attack.trial(subject.behaviours[0])
    [trial.slot.losses(start(subject.model, "zeros", 4)[None])]
    handle = subject.model.blocks[-1].register_forward_hook(hook)
    with trial.meter.watching(subject.model):
        attack.search(trial)
    handle.remove()
    assert trial.meter.spent == seen > 0


def test_texts_of_a_batch_are_charged_until_the_one_that_broke(subject):
    trial = arm_of("uniform", subject, budget=None, seed=0).trial(subject.behaviours[0])
    keys = " ".join(subject.language.keys)
    with trial.meter.watching(subject.model):
        assert trial.check(["filler0", "filler1", keys, "filler2", "filler3", "filler4"])
    half = trial.meter.spent
    assert [a.text for a in trial.attempts] == ["filler0", "filler1", keys]
    other = arm_of("uniform", subject, budget=None, seed=0).trial(subject.behaviours[0])
    with other.meter.watching(subject.model):
        other.check(["filler0", "filler1", "filler5", "filler2", "filler3", "filler4"])
    assert half == pytest.approx(other.meter.spent / 2, abs=6)
    # A text that was tried is passed over: greedy replies do not change.
    assert not other.check(["filler0"])
    assert other.meter.checks == 6


def test_checks_are_limited(subject):
    shared = subject.shared | {"max_checks": 5}
    [one] = Uniform(subject.model, batch=16, **shared).run(subject.behaviours[:1])
    assert one.checks <= 5


def test_a_goal_that_the_bare_prompt_breaks_is_not_attacked(subject):
    free = Behaviour("topic1", subject.language.answer(1), lambda reply: reply == subject.language.answer(1))
    [one] = arm_of("LARGO", subject, budget=None, seed=0).run([free])
    assert one.plain_broke
    assert not one.broke
    assert (one.rounds, one.checks, one.attempts) == (0, 0, ())


def test_the_filter_of_the_ablation_is_that_of_largo(subject):
    attack = BestOfN(subject.model, latent="random", max_checks=3, **subject.shared)
    [one] = attack.run(subject.behaviours[:1])
    assert all(r["text"] is not None for r in one.losses)
    every = BestOfN(subject.model, latent="random", try_all=True, samples=6, max_checks=6, **subject.shared)
    [all_tried] = every.run(subject.behaviours[:1])
    assert all_tried.checks > all_tried.rounds
    with pytest.raises(InputError, match="latent 'none'"):
        BestOfN(subject.model, latent="none", **subject.shared)


def test_the_one_hot_gradient_is_the_slope_of_a_swap(make_tiny):
    model = make_tiny("gpt2")
    model.module.double()
    attack = GCG(model, acknowledge_own_model=True, template=_plain(), suffix_len=3, steps=1, topk=4, width=8)
    attack._table = model.module.get_input_embeddings().weight.detach()
    trial = attack.trial(Behaviour("w1", "w2 w3"))
    ids = torch.tensor([10, 11, 12])
    free = attack._table[ids].clone().requires_grad_()
    [gradient] = torch.autograd.grad(trial.slot.losses(free[None]).sum(), free)
    move = attack._table[20] - attack._table[11]
    step = 1e-6
    up = free.detach().clone()
    up[1] += step * move
    with torch.no_grad():
        slope = float(trial.slot.losses(up[None]) - trial.slot.losses(free.detach()[None])) / step
    assert slope == pytest.approx(float(gradient[1] @ move), rel=1e-4, abs=1e-9)
    attack._table = attack._table.float()
    swaps = attack._swaps(trial, ids)
    assert ((swaps != ids).sum(dim=1) <= 1).all()


def _plain():
    from touchstone.language.largo.template import Frame, Template

    return Template(lambda goal: Frame(goal, " assistant"), Frame("user", " assistant"))


def test_swaps_and_generations_lower_the_loss(make_tiny):
    model = make_tiny()
    shared = {"acknowledge_own_model": True, "template": _plain(), "suffix_len": 4, "judges": _never()}
    goal = [Behaviour("w1", "w2 w3")]
    [swaps] = GCG(model, steps=8, topk=16, width=24, **shared).run(goal)
    [genes] = Genetic(model, generations=8, population=24, **shared).run(goal)
    [near] = NearestToken(model, steps=10, lr=0.1, max_checks=3, **shared).run(goal)
    for one in (swaps, genes):
        assert one.losses[-1]["text"] < one.losses[0]["text"]
        assert not one.broke
    assert near.rounds >= 3
    with pytest.raises(InputError, match="steps"):
        GCG(model, **shared)
    with pytest.raises(InputError, match="generations"):
        Genetic(model, **shared)
    with pytest.raises(InputError, match="elite"):
        Genetic(model, generations=1, elite=0, **shared)


def _never():
    return {"none": RefusalJudge(lambda prompts, replies: [1.0] * len(replies))}


def test_judges_must_agree_and_garbage_is_no_success(make_tiny):
    model = make_tiny()
    said: list[str] = []
    model.generate = lambda prompts, **options: said
    judges = {
        "a": RefusalJudge(lambda p, r: [float("no" in text) for text in r]),
        "b": RefusalJudge(lambda p, r: [float("never" in text) for text in r]),
    }
    attack = Largo(model, acknowledge_own_model=True, template=_plain(), suffix_len=2, judges=judges)
    one = Behaviour("w1", "w2", on_task=["oven"])
    cases = {
        "Heat the oven first.": True,
        "no oven": False,
        "never an oven": False,
        "Heat the pan first.": False,
        "": False,
        "oven oven oven oven oven oven oven oven oven oven": False,
    }
    said.extend(cases)
    assert [reply.broke for reply in attack.replies(one, ["p"] * len(cases))] == list(cases.values())


def test_attacks_need_the_acknowledgement_and_good_arguments(make_tiny, chat_model):
    model = make_tiny()
    with pytest.raises(InputError, match="acknowledge_own_model"):
        Largo(model, template=_plain())
    with pytest.raises(InputError, match="acknowledge_own_model"):
        Uniform(model, template=_plain(), acknowledge_own_model=1)
    with pytest.raises(InputError, match="no chat template"):
        Largo(model, acknowledge_own_model=True)
    for options, name in (
        ({"suffix_len": 0}, "suffix_len"),
        ({"rounds": 0}, "rounds"),
        ({"samples": -1}, "samples"),
        ({"temperature": 0.0}, "temperature"),
        ({"radius": 0.0}, "radius"),
        ({"budget": 0}, "budget"),
        ({"judges": {}}, "judges"),
        ({"init": "ones"}, "init"),
        ({"system": "w1"}, "template, system"),
    ):
        with pytest.raises(InputError, match=name):
            Largo(model, acknowledge_own_model=True, template=_plain(), **options)
    attack = Largo(chat_model, acknowledge_own_model=True, suffix_len=2)
    with pytest.raises(InputError, match="behaviours"):
        attack.run([])
    with pytest.raises(InputError, match="suffix_len 127"):
        Largo(model, acknowledge_own_model=True, template=_plain(), suffix_len=127).run([Behaviour("w1", "w2")])


def test_behaviours_are_looked_at(tmp_path):
    for goal, target, words, name in (("", "a", None, "goal"), ("a", " ", None, "target"), ("a", "b", "c", "on_task")):
        with pytest.raises(InputError, match=name):
            Behaviour(goal, target, words)
    path = tmp_path / "b.jsonl"
    path.write_text('{"goal": "a", "target": "b", "on_task": ["c"]}\n\n{"goal": "d", "target": "e"}\n')
    first, second = read_behaviours(path)
    assert (first.on_task, second.on_task) == (["c"], None)
    for text in ('{"goal": "a"}', "[1]", "{", '{"goal": "a", "target": "b", "on_task": "c"}'):
        path.write_text(text + "\n")
        with pytest.raises(InputError, match=r"(line|record) 1"):
            read_behaviours(path)
    path.write_text("\n")
    with pytest.raises(InputError, match="holds no record"):
        read_behaviours(path)


def test_reports_hold_hashes_and_no_words_unless_they_are_wanted(subject, tmp_path):
    results = arm_of("LARGO", subject, budget=3000, seed=0).run(subject.behaviours[:2])
    path = tmp_path / "r.jsonl"
    write_results(path, results)
    text = path.read_text()
    assert "key0" not in text
    assert "filler" not in text
    assert "answer" not in text.replace('"answer"', "")
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["sha256"] for row in rows] == [digest(one.text) for one in results]
    write_results(path, results, keep_text=True)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["text"] for row in kept] == [one.text for one in results]
    write_latents(tmp_path / "z.safetensors", results)
    tensors, record = read_tensors(tmp_path / "z.safetensors", "touchstone.largo/1", "latents")
    assert torch.equal(torch.tensor(tensors["latent.1"]), torch.tensor(results[1].latent))
    assert record["goals"] == ["topic0", "topic2"]
    assert results[0].text not in repr(results[0])


def test_a_ball_holds_the_latent(subject):
    attack = Largo(subject.model, lr=0.1, rounds=1, restarts=1, radius=0.5, init="mean_embedding", **subject.shared)
    [one] = attack.run(subject.behaviours[:1])
    table = embedding_table(subject.model)
    moved = torch.tensor(one.latent) - table.mean(dim=0)
    assert float(moved.norm(dim=-1).max()) <= 0.5 * float(table.norm(dim=-1).mean()) + 1e-5


def test_end_to_end_on_the_embedded_model(real_model: LanguageModel):
    from touchstone.language.largo.house_rule import BEHAVIOURS, RULE

    attack = Largo(
        real_model, acknowledge_own_model=True, system=RULE, suffix_len=6, steps=4, rounds=1, restarts=1, lr=1e-2,
        samples=1, max_new_tokens=8, init="mean_embedding",
    )  # fmt: skip
    [one] = attack.run(BEHAVIOURS[:1])
    assert not one.plain_broke
    first, last = one.losses[0]["latent"]
    assert last < first
    assert one.text
    assert one.attempts[0].text == one.text
    assert one.perplexity > 1
