"""Subgraphs, judges, calibration, metrics and leaks, by hand and on an invented world; check, commands and study."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from touchstone.errors import InputError
from touchstone.language.knowledge_unlearning_eval import (
    ChatJudge,
    KnowledgeGraph,
    RuleJudge,
    Rules,
    Subgraph,
    SupportingSubgraph,
    Triple,
    TripleProbe,
    closed_unlearning,
    corruptions,
    evaluate_unlearning,
    fit_temperature,
    judge_agreement,
    minimal_leak_set,
    read_case,
)
from touchstone.language.knowledge_unlearning_eval import check as checking
from touchstone.language.knowledge_unlearning_eval import study as studying
from touchstone.language.knowledge_unlearning_eval.calibrating import calibration_error
from touchstone.language.knowledge_unlearning_eval.cli import app
from touchstone.language.knowledge_unlearning_eval.countries import COUNTRY_RULES, countries
from touchstone.language.knowledge_unlearning_eval.evaluation import targets_for_precision, ues
from touchstone.language.knowledge_unlearning_eval.judging import parse_score
from touchstone.language.knowledge_unlearning_eval.probing import Probes, entropy_bits
from touchstone.language.knowledge_unlearning_eval.subgraph import prune
from touchstone.language.knowledge_unlearning_eval.world import WORLD_RULES, examples_of, learn, make_world
from touchstone.language.loading import save
from touchstone.language.unlearning import Training, unlearn
from touchstone.run import Run


class Oracle:
    """A probe that admits given triples, with given entropies."""

    def __init__(self, held: dict[tuple[str, str, str], float]) -> None:
        self.held = {Triple(*one): h for one, h in held.items()}
        self.asked: list[Triple] = []

    def score(self, triples):
        self.asked += triples
        entropy = np.array([self.held.get(one, np.inf) for one in triples])
        return Probes(np.zeros((len(triples), 3)), entropy, np.where(np.isfinite(entropy), 0, 1))


@pytest.fixture(scope="module")
def world():
    return make_world(0, countries=3, companies=8, persons=20, targets=12)


@pytest.fixture(scope="module")
def model(world):
    return learn(world, epochs=40)


@pytest.fixture(scope="module")
def case(world, tmp_path_factory):
    place = tmp_path_factory.mktemp("case") / "world.json"
    rules = {
        "same": [[*key, w] for key, w in WORLD_RULES.same.items()],
        "composed": [[*key, w] for key, w in WORLD_RULES.composed.items()],
    }
    data = {"triples": world.graph.triples, "targets": world.targets, "kinds": world.graph.kinds, "rules": rules}
    place.write_text(json.dumps(data))
    return place


@pytest.fixture(scope="module")
def after(world, model):
    forget = examples_of(model, world.targets)
    retain = examples_of(model, [one for one in world.graph.triples if one not in world.targets])
    return unlearn(model, "npo+kl", forget, retain, training=Training(epochs=6, lr=3e-4, batch_size=8))


def test_entropies_of_the_table():
    rows = np.array([[0.5, 0.5, 0], [1, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0.773, 0.1135, 0.1135], [0.89, 0.055, 0.055]])
    np.testing.assert_allclose(entropy_bits(rows), [1, 0, np.log2(3), 1.0, 0.61], atol=0.005)


def chain(*names, relation="r"):
    return {(a, relation, b): 0.1 for a, b in itertools.pairwise(names)}


def test_a_subgraph_is_the_paths_and_dead_ends_are_pruned():
    held = {**chain("s", "a", "o"), ("s", "r", "o"): 0.2, ("s", "r", "b"): 0.0}
    graph = KnowledgeGraph(held)
    probe = Oracle(held)
    found = SupportingSubgraph(graph, probe, k=2).extract(Triple("s", "r", "o"))
    assert found.edges == {Triple("s", "r", "a"): 0.1, Triple("a", "r", "o"): 0.1, Triple("s", "r", "o"): 0.2}
    assert found.direct == 0.2
    assert found.probes == len(probe.asked)
    strict = SupportingSubgraph(graph, Oracle(held), k=2, u_star=0.15).extract(Triple("s", "r", "o"))
    assert strict.direct is None
    assert len(strict.edges) == 2


def test_long_chains_and_budgets_are_cut():
    held = chain("s", "a", "b", "c", "o")
    graph = KnowledgeGraph(held)
    assert SupportingSubgraph(graph, Oracle(held), k=4).extract(Triple("s", "r", "o")).edges == {}
    assert len(prune({Triple(*k): v for k, v in held.items()}, "s", "o", 4)) == 4
    small = SupportingSubgraph(graph, Oracle(held), k=4, max_queries=2).extract(Triple("s", "r", "o"))
    assert small.capped
    assert small.probes <= 2
    search = SupportingSubgraph(graph, Oracle(held), k=4)
    assert search.cost(Triple("s", "r", "o")) >= search.extract(Triple("s", "r", "o")).probes - 1
    with pytest.raises(InputError, match="entity 'z'"):
        search.extract(Triple("z", "r", "o"))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=16), st.randoms())
def test_pruning_is_by_walks_and_the_order_does_not_matter(pairs, random):
    edges = {Triple(f"n{a}", "r", f"n{b}"): 0.1 for a, b in pairs if a != b}
    items = list(edges.items())
    random.shuffle(items)
    found = prune(dict(items), "n0", "n1", 3)
    assert found == prune(edges, "n0", "n1", 3)
    walks = set()
    for one in edges:
        if one.head == "n0" and one.tail == "n1":
            walks.add((one,))
        for two in edges:
            if one.tail != two.head:
                continue
            if one.head == "n0" and two.tail == "n1":
                walks.add((one, two))
            for three in edges:
                if two.tail == three.head and one.head == "n0" and three.tail == "n1":
                    walks.add((one, two, three))
    assert set(found) == {edge for walk in walks for edge in walk}


def test_kinds_are_inferred_from_places_and_filter_relations():
    graph = KnowledgeGraph(
        [("lyon", "in", "france"), ("rome", "in", "italy"), ("ada", "born", "lyon"), ("bo", "born", "rome")]
    )
    assert graph.allowed("ada", "rome") == ("born",)
    assert graph.allowed("rome", "france") == ("in",)
    assert graph.allowed("france", "ada") == ()
    assert graph.allowed("nobody", "rome") == ("born", "in")
    assert graph.neighbours("lyon", 1) == ("ada", "france")
    assert graph.neighbours("bo", 2) == ("italy", "rome")
    false = corruptions(graph, 2)
    assert all(one not in graph and graph.kinds[one.tail] for one in false)
    for bad, match in (([], "no triples"), ([("a", " ", "b")], "empty part")):
        with pytest.raises(InputError, match=match):
            KnowledgeGraph(bad)


ROME = Triple("Rome", "located_in", "Europe")
RULES = Rules({("capital_of", "located_in"): 1.0}, {("located_in", "located_in", "located_in"): 1.0})


def test_the_rule_judge_by_hand():
    edges = {Triple("Rome", "capital_of", "Italy"): 0.08, Triple("Italy", "located_in", "Europe"): 0.12}
    judge = RuleJudge(RULES)
    assert judge.score(Subgraph(ROME, edges)).score == 5
    assert judge.score(Subgraph(ROME)).score == 0
    assert judge.score(Subgraph(ROME, {ROME: 0.0})).score == 5
    assert judge.score(Subgraph(ROME, {ROME: 1.0})).score == 3
    stranger = {Triple("Rome", "loves", "Italy"): 0.0, Triple("Italy", "loves", "Europe"): 0.0}
    assert judge.score(Subgraph(ROME, stranger)).score == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1.5), min_size=4, max_size=4), st.integers(0, 3), st.floats(0, 1))
def test_the_rule_judge_is_monotone(entropies, which, share):
    names = [("Rome", "capital_of", "Italy"), ("Italy", "located_in", "Europe"), ROME, ("Rome", "located_in", "Italy")]
    edges = {Triple(*one): h for one, h in zip(names, entropies, strict=True)}
    judge = RuleJudge(RULES)
    here = judge.score(Subgraph(ROME, edges)).score
    one = list(edges)[which]
    assert judge.score(Subgraph(ROME, {**edges, one: edges[one] * share})).score >= here
    assert judge.score(Subgraph(ROME, {e: h for e, h in edges.items() if e != one})).score <= here


def test_a_chat_judge_is_asked_parsed_and_never_read_as_zero():
    assert parse_score("I count 3 paths, entropy 0.2.\nFinal Confidence Score: 4") == 4
    assert parse_score("Final Confidence Score: 2\nno: Final Confidence Score: **3.5**") == 3.5
    assert parse_score("score 4 of 5") is None
    assert parse_score("Final Confidence Score: 7") is None
    assert parse_score("Final Confidence Score: 45") is None
    replies = iter(["hm", "Final Confidence Score: 5", "Final Confidence Score: 2"])
    prompts: list[str] = []
    judge = ChatJudge(lambda prompt: prompts.append(prompt) or next(replies), rounds=2, anonymise=True)
    assert judge.score(Subgraph(ROME, {ROME: 0.25})).score == 3.5
    assert "(E1, located_in, E2)  entropy 0.25" in prompts[0]
    assert "Rome" not in prompts[0].split("Facts:")[1]
    assert ChatJudge(lambda prompt: "no idea").score(Subgraph(ROME, {ROME: 0.1})).score is None
    assert ChatJudge(lambda prompt: 1 / 0).score(Subgraph(ROME)).score == 0
    agreed = judge_agreement([1, 2, 3, 5], [1, 2, 4, 5])
    assert agreed["spearman"] == pytest.approx(1.0)
    assert agreed["mean_absolute_difference"] == 0.25
    with pytest.raises(InputError, match="expected as many"):
        judge_agreement([1], [1, 2])


def test_scores_by_hand():
    assert ues(5, 2) == pytest.approx(0.6)
    assert ues(4, 5) == pytest.approx(-0.25)
    assert np.isnan(ues(0, 0))
    held = {**chain("s", "a", "o"), ("s", "r", "o"): 0.0}
    graph = KnowledgeGraph(held)
    judge = RuleJudge(Rules(composed={("r", "r", "r"): 1.0}))
    target = Triple("s", "r", "o")
    same = evaluate_unlearning(Oracle(held), Oracle(held), [target], graph, judge)
    assert (same.ues_graph.value, same.ues_instance.value, same.recall.value) == (0, 0, 1)
    hidden = {one: h for one, h in held.items() if one != tuple(target)}
    found = evaluate_unlearning(Oracle(held), Oracle(hidden), [target], graph, judge)
    assert found.ues_instance.value == 1
    assert found.ues_graph.value == 0
    assert found.hidden.value == 1
    assert found.recall.value == pytest.approx(2 / 3)
    assert found.gap.value == 1
    assert found.not_deducible.value == 0
    gone = evaluate_unlearning(Oracle(held), Oracle({}), [target], graph, judge)
    assert (gone.ues_graph.value, gone.recall.value, gone.not_deducible.value) == (1, 0, 1)
    with pytest.raises(InputError, match="holds none of the 1"):
        evaluate_unlearning(Oracle({}), Oracle({}), [target], graph, judge)
    with pytest.raises(InputError, match="there are none"):
        evaluate_unlearning(Oracle(held), Oracle(held), [], graph, judge)


def test_the_temperature_of_scaled_logits_comes_back():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (4000, 3))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    label = (rng.random(4000)[:, None] > p.cumsum(axis=1)).sum(axis=1)
    keep = label < 2
    triples = [Triple(f"e{i}", "r", str(y)) for i, y in enumerate(label[keep])]
    # Only Yes and No are labels: the third option is made unlikely.
    raw = np.column_stack([logits[keep][:, :2], np.full(keep.sum(), -50.0)])
    q = 1 / (1 + np.exp(raw[:, 1] - raw[:, 0]))
    label = (rng.random(len(q)) > q).astype(int)

    class Given:
        temperature = 1.0

        def raw(self, asked):
            index = {one: i for i, one in enumerate(triples)}
            return raw[[index[one] for one in asked]] / 3

    true, false = ([one for one, y in zip(triples, label, strict=True) if y == want] for want in (0, 1))
    found = fit_temperature(Given(), true, false)
    assert found.temperature == pytest.approx(1 / 3, rel=0.1)
    assert found.ece_after < found.ece_before
    certain = np.array([[1.0, 0, 0], [0.6, 0.4, 0]])
    assert calibration_error(certain, np.array([0, 1])) == pytest.approx(0.3)
    with pytest.raises(InputError, match="expected triples of both"):
        fit_temperature(Given(), true, [])


def test_probing_with_what_is_shared_is_plain_probing(real_model):
    graph = KnowledgeGraph(
        [("Paris", "located_in", "France"), ("Rome", "located_in", "Italy"), ("Rome", "capital_of", "Italy")]
    )
    probe = TripleProbe(real_model, "complete", mode="three")
    together = probe.score(graph.triples)
    alone = [TripleProbe(real_model, "complete", mode="three").score([one]) for one in graph.triples]
    np.testing.assert_allclose(together.options, np.concatenate([one.options for one in alone]), atol=1e-5)
    assert ((together.options > 0) & (together.options < 1)).all()
    assert "located in" in probe.prompts(graph.triples)[1]


def test_the_model_learns_the_world_and_its_targets_are_supported(world, model):
    probe = TripleProbe(model, "plain")
    answers = probe.score(list(world.graph.triples))
    assert (answers.answer == 0).mean() > 0.95
    strange = [Triple(name, "works_at", "company0") for name in world.unknown]
    assert (probe.score(strange).answer == 2).mean() > 0.8
    assert (probe.score(corruptions(world.graph, 100)).answer == 1).mean() > 0.7
    search = SupportingSubgraph(world.graph, probe, k=2)
    scores = [RuleJudge(WORLD_RULES).score(search.extract(one)).score for one in world.targets]
    assert np.mean(scores) > 4
    with pytest.raises(InputError, match="temperature 0"):
        TripleProbe(model, "plain", temperature=0)
    with pytest.raises(InputError, match="expected a name"):
        TripleProbe(model, "{head} and {tail}")


def test_asking_alone_overestimates(world, model, after):
    found = evaluate_unlearning(
        TripleProbe(model, "plain"),
        TripleProbe(after, "plain"),
        world.targets,
        world.graph,
        RuleJudge(WORLD_RULES),
        k=2,
    )
    assert found.ues_instance.value > 0.1
    assert found.ues_graph.value <= found.ues_instance.value
    assert found.locality.value > 0.5
    assert 0 < found.probability_drop.value <= 1
    assert int(found.confusion.to_numpy().sum()) == found.locality.n
    assert targets_for_precision(found, 0.05) > targets_for_precision(found, 0.1)


def test_facts_about_countries_follow_from_each_other():
    try:
        found = countries(targets=20)
    except InputError as error:
        pytest.skip(str(error))
    assert len(found.graph.triples) > 1000
    truth = Oracle({tuple(one): 0.1 for one in found.graph.triples if one not in found.targets})
    search = SupportingSubgraph(found.graph, truth, k=2, max_queries=100_000)
    scores = [RuleJudge(COUNTRY_RULES).score(search.extract(one)).score for one in found.targets[:5]]
    assert min(scores) >= 4


def test_leak_sets_are_smallest_and_the_loop_removes_them():
    target = Triple("s", "r", "o")
    judge = RuleJudge(Rules(composed={("r", "r", "r"): 1.0}))
    held = {**chain("s", "a", "o"), **chain("s", "b", "o"), ("s", "r", "o"): 0.0}
    sub = Subgraph(target, {Triple(*one): h for one, h in held.items()})
    leak = minimal_leak_set(sub, judge)
    assert len(leak) == 2
    rest = {e: h for e, h in sub.edges.items() if e not in leak and e != target}
    assert judge.score(Subgraph(target, rest)).score < 3
    assert minimal_leak_set(Subgraph(target, {target: 0.0}), judge) == []
    graph = KnowledgeGraph(held)

    def forget(gone):
        return SupportingSubgraph(graph, Oracle({one: h for one, h in held.items() if Triple(*one) not in gone}), k=2)

    gone, history = closed_unlearning([target], forget, judge)
    assert [row["inferable"] for row in history] == [1, 0]
    assert gone[0] == target
    assert len(gone) == 3


def test_the_check_compares_two_models(case, model, after):
    settings_ = checking.Settings(graph=str(case), template="plain")
    evidence = checking.check(after, settings_, Run(), before=model)
    assert {one.id for one in evidence.findings} == {name.replace("_", "-") for name in checking.METRICS}
    alone, graph = (evidence.finding(name).measured.value for name in ("ues-instance", "ues-graph"))
    assert graph <= alone
    same = checking.check(model, settings_, Run(), before=model)
    assert same.finding("ues-graph").measured.value == 0
    assert same.finding("locality").measured.value == 1
    with pytest.raises(InputError, match="needs the setting graph"):
        checking.check(model, checking.Settings(), Run(), before=model)


def test_commands_from_probe_to_report(case, model, after, tmp_path):
    for name, one in (("before", model), ("after", after)):
        (tmp_path / name).mkdir()
        save(one.module, one.tokenizer, tmp_path / name)
    plain = ("--graph", case, "--template", "plain")

    def run(*arguments, code=0):
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        if isinstance(result.exception, InputError):
            raise result.exception
        assert result.exit_code == code, (result.output, result.exception)
        return result.stdout

    old = ("--model", tmp_path / "before")
    assert len(json.loads(run("probe", *plain, *old, "--json"))) == len(read_case(case).graph.triples)
    assert "Yes:" in run("probe", *plain, *old)
    assert json.loads(run("calibrate", *plain, *old, "--n", 50, "--json"))["temperature"] > 0
    out = tmp_path / "sub.jsonl"
    assert "12 subgraphs" in run("subgraph", *plain, *old, "--out", out)
    scores = json.loads(run("judge", out, "--graph", case, "--json"))["scores"]
    labels = tmp_path / "labels.jsonl"
    labels.write_text("".join(json.dumps({"score": min(5, i % 6)}) + "\n" for i in range(len(scores))))
    assert "agreement" in json.loads(run("judge", out, "--graph", case, "--labels", labels, "--json"))
    record = json.loads(run("report", *plain, "--before", tmp_path / "before", "--after", tmp_path / "after", "--json"))
    assert record["ues_graph"][0] <= record["ues_instance"][0]
    assert "locality" in run("report", *plain, "--before", tmp_path / "before", "--after", tmp_path / "after")
    new = tmp_path / "new"
    assert "12 triples unlearned by ga" in run(
        "unlearn", *plain, *old, "--out", new, "--method", "ga", "--epochs", 1, "--trainable", "all"
    )
    assert (new / "model.safetensors").is_file()
    for arguments, match in (
        (("subgraph", *plain, *old, "--out", out), "already exists"),
        (("judge", out, "--graph", case, "--endpoint", "http://x"), "needs --judge"),
        (("unlearn", *plain, *old, "--out", new), "already exists"),
        (("probe", "--graph", tmp_path / "none.json", *old), r"none\.json"),
    ):
        with pytest.raises(InputError, match=match):
            run(*arguments)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"triples": [["a", "r", "b"]]}, "'targets'"),
        ({"triples": [["a", "r"]], "targets": [["a", "r", "b"]]}, "triple 1: expected head"),
        ({"triples": [["a", "r", "b"]], "targets": []}, "there are no targets"),
        ({"triples": [["a", "r", "b"]], "targets": [["a", "r", "z"]]}, "'z' is in no triple"),
        (
            {"triples": [["a", "r", "b"]], "targets": [["a", "r", "b"]], "rules": {"same": [["r", "s", 2]]}},
            "strength 2",
        ),
    ],
)
def test_files_that_cannot_be_are_one_error(tmp_path, data, match):
    place = tmp_path / "g.json"
    place.write_text(json.dumps(data))
    with pytest.raises(InputError, match=match):
        read_case(place)


def test_smoke_reports_every_claim():
    evidence = studying.study("smoke", Run())
    claims = {one.id for one in evidence.findings}
    assert {"overestimation", "threshold", "temperature", "calibration", "judges", "leak-set"} <= claims
    assert evidence.finding("overestimated-everywhere").verdict == "holds"
    assert evidence.finding("leak-set").verdict == "holds"
    with pytest.raises(InputError, match="scale 'big'"):
        studying.study("big", Run())
