"""How much of a prompt can change before the embedded model notices, and which patterns it cannot hold.

python examples/isolation-continuity.py
"""

from __future__ import annotations

from touchstone.language import LanguageModel
from touchstone.language.isolation_continuity import (
    DecisiveEdit,
    captures,
    continuity_curve,
    decisive_edits,
    learnable_periods,
    pattern,
)
from touchstone.language.isolation_continuity.curve import summary


def main() -> None:
    model = LanguageModel.load()
    curve = continuity_curve(model, pattern(model), lengths=(64, 256), fractions=(0.1,), draws=4)
    print(summary(curve.rows)[["length", "k", "fraction", "tv_mean", "top1_same"]].to_string(index=False))

    periods = learnable_periods(model, periods=(4, 16, 64))
    print(f"\nholds periods up to {periods.numbers['p_max']:.0f}; matching suffixes holds them all")
    print(captures(model, periods=(8, 64), length=192).rows.to_string(index=False))

    log = "The pump is on.\n" + "The valve is open.\n" * 12
    pair = DecisiveEdit(
        "status",
        f"{log}The alarm is on.\nIs the alarm on? Answer Yes or No.",
        f"{log}The alarm is off.\nIs the alarm on? Answer Yes or No.",
        "Yes",
        "No",
    )
    row = decisive_edits(model, [pair]).rows.iloc[0]
    print(f"\none word of {row['tokens']} tokens changed: P(Yes) {row['p_before']:.3f} -> {row['p_after']:.3f}")


if __name__ == "__main__":
    main()
