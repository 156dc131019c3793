"""The verbs of the room: ``touchstone language …``."""

from __future__ import annotations

import typer

from touchstone.language.angular_steering.cli import app as steer
from touchstone.language.deep_value_benchmark.cli import app as deep_values
from touchstone.language.evorefuse.cli import app as over_refusal
from touchstone.language.fairness_reward_model.cli import app as fair_reasoning
from touchstone.language.isolation_continuity.cli import app as continuity
from touchstone.language.knowledge_unlearning_eval.cli import app as unlearning_eval
from touchstone.language.largo.cli import app as red_team
from touchstone.language.loro.cli import app as obfuscate
from touchstone.language.perinucleus_fingerprint.cli import app as fingerprint
from touchstone.language.test_awareness.cli import app as test_awareness
from touchstone.language.unlearned_extraction.cli import app as extraction

__all__ = ["app"]

app = typer.Typer(
    name="language",
    help="Causal language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(steer)
app.add_typer(over_refusal)
app.add_typer(test_awareness)
app.add_typer(red_team)
app.add_typer(fingerprint)
app.add_typer(obfuscate)
app.add_typer(extraction)
app.add_typer(unlearning_eval)
app.add_typer(fair_reasoning)
app.add_typer(deep_values)
app.add_typer(continuity)
