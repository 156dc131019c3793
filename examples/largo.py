"""Attack a harmless rule of the embedded model, measure how near it is to giving way, and what a filter would stop.

python examples/largo.py
"""

from __future__ import annotations

from touchstone.language import LanguageModel
from touchstone.language.largo import GCG, Largo, PerplexityFilter, guard_margin, leaderboard
from touchstone.language.largo.house_rule import BEHAVIOURS, BENIGN, RULE


def main() -> None:
    model = LanguageModel.load()
    shared = {"acknowledge_own_model": True, "system": RULE, "suffix_len": 8, "max_new_tokens": 16}
    behaviours = BEHAVIOURS[:1]
    largo = Largo(model, steps=8, rounds=2, restarts=1, lr=1e-2, init="mean_embedding", **shared)
    found = largo.run(behaviours)
    swaps = GCG(model, width=16, budget=found[0].tokens_forward, **shared).run(behaviours)
    print(leaderboard([*found, *swaps]).to_string(index=False, float_format="{:.3g}".format))

    margin = guard_margin(largo, behaviours, steps=8).iloc[0]
    print(f"\nloss of a complying reply: {margin.plain:.2f} nats a token, {margin.margin:.2f} under embeddings nearby")

    filter = PerplexityFilter(model, BENIGN[::2])
    for one in (*found, *swaps):
        verdict = "passes" if filter.admits(f"{one.goal} {one.text}") else "is stopped by"
        print(f"the text of {one.attack} {verdict} the perplexity filter: {one.text!r}")


if __name__ == "__main__":
    main()
