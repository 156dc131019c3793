"""Audit models of one's own on real data: who is refused by all of them, how much is chance, which model to add.

python examples/monoculture.py
"""

from __future__ import annotations

from touchstone.decisions.monoculture import (
    audit,
    describe_excluded,
    greedy_portfolio,
    recourse_by_size,
    recourse_levels,
)
from touchstone.decisions.monoculture.adult import load, split
from touchstone.decisions.monoculture.zoo import Parts, across_models
from touchstone.run import Run

KINDS = ("logistic C=1", "51 neighbours", "tree depth 5", "forest depth 12", "boosting rate 0.05")


def main() -> None:
    # Ten models that say who earns over 50,000 dollars, on 6,000 people none of them has seen.
    parts = Parts(*split(load(), (4000, 2000, 6000), 0))
    table = across_models(parts, Run(), KINDS)
    report = audit(table, eps=0.05)
    print(report.to_markdown())

    chosen = report.table
    print("One more model is worth, in people without recourse:")
    print(recourse_by_size(chosen).to_string(index=False, float_format="{:.3f}".format))
    print("\nModels in the order that leaves the fewest without recourse:")
    print(greedy_portfolio(chosen, 4).to_string(index=False, float_format="{:.3f}".format))

    people = parts.test.frame.loc[
        table.in_focus().rows, ["age", "education_num", "hours_per_week", "sex", "occupation"]
    ]
    print("\nWho they are, rules from one half of the people and shares on the other:")
    found = describe_excluded(people.reset_index(drop=True), recourse_levels(chosen) == 0)
    print(found.head(3)[["rule", "cases", "share", "low", "high"]].to_string(index=False, float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
