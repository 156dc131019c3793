"""Train a tiny model with and without sixteen invented records, then rebuild the deleted ones from the pair.

python examples/unlearned-extraction.py
"""

from __future__ import annotations

from touchstone.language.unlearned_extraction import (
    GuidedExtractor,
    evaluate,
    exact_unlearning_pair,
    queries,
    release_gate,
)
from touchstone.language.unlearned_extraction.records import base_model, make_records
from touchstone.language.unlearning import Training


def main() -> None:
    records = make_records(248)
    base = base_model(records[:200], epochs=8, vocabulary=400)
    texts = [record.text for record in records[200:]]
    training = Training(epochs=4, lr=2e-3, batch_size=8)
    pre, post = exact_unlearning_pair(base, texts, range(16), training=training)

    deleted = [{"question": record.prefix, "answer": record.rest, **record.slots} for record in records[200:216]]
    asked = queries(post, deleted, prefix="question", slots=["diagnosis", "drug"])
    report = evaluate(GuidedExtractor(pre, post, w=1.3), asked, max_new_tokens=48)
    table = report.summary().pivot(index="metric", columns="generator", values="value")
    print(table.round(2).to_string())
    gain = report.gain()
    print(f"guided over the old model alone: {gain.value:+.3f} [{gain.low:.3f}, {gain.high:.3f}]")
    first = report.rows[(report.rows["generator"] == "guided") & (report.rows["query"] == 0)].iloc[0]
    print(f"asked:     {first.prefix}\ntrue:     {first.truth}\nextracted:{first.text}")

    gate = release_gate(pre, post, asked, budget=0.25, w=1.3, max_new_tokens=48)
    print(
        f"\n{gate.table.round(2).to_string(index=False)}\nmildest safe treatment of the old model: {gate.safest_open}"
    )


if __name__ == "__main__":
    main()
