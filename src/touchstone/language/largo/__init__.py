"""LARGO (arXiv 2505.10838): how easily do the guard rails of your own model give way to fluent text?

>>> attack = Largo(model, system=RULE, acknowledge_own_model=True)
>>> attack.run([Behaviour(goal, target, on_task=words)])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.language.largo.comparing import leaderboard as leaderboard
    from touchstone.language.largo.comparing import survival as survival
    from touchstone.language.largo.comparing import transfer as transfer
    from touchstone.language.largo.defences import ActivationProbe as ActivationProbe
    from touchstone.language.largo.defences import Paraphrase as Paraphrase
    from touchstone.language.largo.defences import PerplexityFilter as PerplexityFilter
    from touchstone.language.largo.defences import SmoothVote as SmoothVote
    from touchstone.language.largo.defences import defence_report as defence_report
    from touchstone.language.largo.hunting import hunt as hunt
    from touchstone.language.largo.hunting import trigger as trigger
    from touchstone.language.largo.largo import Largo as Largo
    from touchstone.language.largo.margin import guard_margin as guard_margin
    from touchstone.language.largo.pairs import export_pairs as export_pairs
    from touchstone.language.largo.result import Behaviour as Behaviour
    from touchstone.language.largo.result import LargoResult as LargoResult
    from touchstone.language.largo.result import read_behaviours as read_behaviours
    from touchstone.language.largo.result import write_latents as write_latents
    from touchstone.language.largo.result import write_results as write_results
    from touchstone.language.largo.rivals import GCG as GCG
    from touchstone.language.largo.rivals import BestOfN as BestOfN
    from touchstone.language.largo.rivals import Genetic as Genetic
    from touchstone.language.largo.rivals import NearestToken as NearestToken
    from touchstone.language.largo.rivals import Uniform as Uniform
    from touchstone.language.largo.template import Template as Template

# Resolved on first use, so that importing the package loads neither torch nor transformers.
_EXPORTS = {
    "GCG": "rivals",
    "ActivationProbe": "defences",
    "Behaviour": "result",
    "BestOfN": "rivals",
    "Genetic": "rivals",
    "Largo": "largo",
    "LargoResult": "result",
    "NearestToken": "rivals",
    "Paraphrase": "defences",
    "PerplexityFilter": "defences",
    "SmoothVote": "defences",
    "Template": "template",
    "Uniform": "rivals",
    "defence_report": "defences",
    "export_pairs": "pairs",
    "guard_margin": "margin",
    "hunt": "hunting",
    "leaderboard": "comparing",
    "read_behaviours": "result",
    "survival": "comparing",
    "transfer": "comparing",
    "trigger": "hunting",
    "write_latents": "result",
    "write_results": "result",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
