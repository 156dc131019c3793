"""Teach a tiny model an invented world, unlearn some facts, and see which can still be inferred from the others.

python examples/knowledge-unlearning-eval.py
"""

from __future__ import annotations

from touchstone.language.knowledge_unlearning_eval import (
    RuleJudge,
    SupportingSubgraph,
    TripleProbe,
    evaluate_unlearning,
    minimal_leak_set,
)
from touchstone.language.knowledge_unlearning_eval.world import WORLD_RULES, examples_of, learn, make_world
from touchstone.language.unlearning import Training, unlearn


def main() -> None:
    world = make_world(0, countries=3, companies=8, persons=20, targets=12)
    model = learn(world, epochs=40)
    before, judge = TripleProbe(model, "plain"), RuleJudge(WORLD_RULES)

    others = [one for one in world.graph.triples if one not in world.targets]
    forget, retain = (examples_of(model, some) for some in (world.targets, others))
    after = unlearn(model, "npo+kl", forget, retain, training=Training(epochs=5, lr=3e-4, batch_size=8))

    probe = TripleProbe(after, "plain")
    report = evaluate_unlearning(before, probe, world.targets, world.graph, judge, k=2)
    print(report.per_target[["target", "instance_after", "graph_after"]].to_string(index=False))
    print(f"unlearning effect: {report.ues_instance.value:.2f} asked alone, {report.ues_graph.value:.2f} by subgraph")
    print(f"gone alone, yet inferable: {report.hidden.value:.2f}; neighbours unchanged: {report.locality.value:.2f}")

    subgraph = SupportingSubgraph(world.graph, probe, k=2).extract(world.targets[0])
    print(f"\n{' '.join(world.targets[0])}: {judge.score(subgraph).reasoning}")
    print(f"what else would have to go: {[' '.join(one) for one in minimal_leak_set(subgraph, judge)]}")


if __name__ == "__main__":
    main()
