"""Deep Value Benchmark (arXiv 2511.02109): does a model learn the value behind choices, or a trait that came along?

>>> bench = DeepValueBenchmark.generate(n_tuples=16, tests_per=3, controls_per=2, shots=[4])
>>> bench.run(LogProbChooser(model)).dvgr()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.language.deep_value_benchmark.attributes import Attributes as Attributes
    from touchstone.language.deep_value_benchmark.attributes import default_attributes as default_attributes
    from touchstone.language.deep_value_benchmark.benchmark import DeepValueBenchmark as DeepValueBenchmark
    from touchstone.language.deep_value_benchmark.choosers import LinearPreferenceLearner as LinearPreferenceLearner
    from touchstone.language.deep_value_benchmark.choosers import LogProbChooser as LogProbChooser
    from touchstone.language.deep_value_benchmark.choosers import MixtureOracle as MixtureOracle
    from touchstone.language.deep_value_benchmark.choosers import RandomChooser as RandomChooser
    from touchstone.language.deep_value_benchmark.choosers import ShallowOracle as ShallowOracle
    from touchstone.language.deep_value_benchmark.choosers import TextChooser as TextChooser
    from touchstone.language.deep_value_benchmark.choosers import ValueOracle as ValueOracle
    from touchstone.language.deep_value_benchmark.confounding import confounding_curve as confounding_curve
    from touchstone.language.deep_value_benchmark.llm import LLMGenerator as LLMGenerator
    from touchstone.language.deep_value_benchmark.loading import from_json as from_json
    from touchstone.language.deep_value_benchmark.readout import read_out as read_out
    from touchstone.language.deep_value_benchmark.results import Results as Results
    from touchstone.language.deep_value_benchmark.results import agreement as agreement
    from touchstone.language.deep_value_benchmark.statistics import power_n as power_n

# Resolved on first use, so that importing the package loads neither torch nor scikit-learn.
_EXPORTS = {
    "Attributes": "attributes",
    "DeepValueBenchmark": "benchmark",
    "LLMGenerator": "llm",
    "LinearPreferenceLearner": "choosers",
    "LogProbChooser": "choosers",
    "MixtureOracle": "choosers",
    "RandomChooser": "choosers",
    "Results": "results",
    "ShallowOracle": "choosers",
    "TextChooser": "choosers",
    "ValueOracle": "choosers",
    "agreement": "results",
    "confounding_curve": "confounding",
    "default_attributes": "attributes",
    "from_json": "loading",
    "power_n": "statistics",
    "read_out": "readout",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
