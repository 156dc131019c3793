"""Ask what is generalised from confounded choices: oracles, a preference learner, and the embedded model.

python examples/deep-value-benchmark.py
"""

from __future__ import annotations

from touchstone.language import LanguageModel
from touchstone.language.deep_value_benchmark import (
    DeepValueBenchmark,
    LinearPreferenceLearner,
    LogProbChooser,
    ShallowOracle,
    ValueOracle,
)


def main() -> None:
    many = DeepValueBenchmark.generate(n_tuples=100, tests_per=2, controls_per=2, shots=[20])
    print(many.audit().warning or "values and traits are equally legible")
    for chooser in (ValueOracle(), ShallowOracle(), LinearPreferenceLearner()):
        found = many.run(chooser)
        rate, control = found.rate(), found.control_accuracy()
        print(f"{type(chooser).__name__:24s} value rate {rate.value:.2f} [{rate.low:.2f}, {rate.high:.2f}]", end="")
        print(f"   control {control.value:.2f}")

    few = DeepValueBenchmark.generate(n_tuples=3, tests_per=2, controls_per=2, shots=[4])
    found = few.run(LogProbChooser(LanguageModel.load()))
    rate, bias = found.rate(), found.position_bias()
    print(f"{'embedded model':24s} value rate {rate.value:.2f} [{rate.low:.2f}, {rate.high:.2f}]", end="")
    print(f"   control {found.control_accuracy().value:.2f}   first place is worth {bias.value:+.2f} nats")
    print("its rate means something" if found.meaningful else "its control gate is shut: the rate says nothing")


if __name__ == "__main__":
    main()
