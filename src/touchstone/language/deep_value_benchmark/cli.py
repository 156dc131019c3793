"""``touchstone language deep-values``: write trials, run them on a model, look at what makes them legible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touchstone.errors import InputError
from touchstone.language.options import Json, Seed

if TYPE_CHECKING:
    from touchstone.language.deep_value_benchmark.benchmark import DeepValueBenchmark

__all__ = ["app"]

app = typer.Typer(
    name="deep-values",
    help="Measure whether a model learns the value behind choices or a surface trait that came along.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Attributes = Annotated[Path | None, typer.Option(help="TOML with your own values, traits and contexts.")]
Match = Annotated[bool, typer.Option("--match-signal", help="Make values and traits as legible as each other.")]
Tuples = Annotated[int, typer.Option(min=1, help="Tuples of two values, two traits and a context.")]
Tests = Annotated[int, typer.Option(min=1, help="Trials of each in which value and trait conflict.")]
Controls = Annotated[int, typer.Option(min=0, help="Trials of each in which they agree.")]
Shots = Annotated[list[int] | None, typer.Option("--shots", help="Examples in a prompt; repeat it. Default 4.")]
Correlation = Annotated[float, typer.Option(help="Of value and trait in the examples, 0 to 1.")]


@app.command()
def generate(
    out: Annotated[Path, typer.Option("--out", help="JSONL of the trials.")] = Path("trials.jsonl"),
    tuples: Tuples = 400,
    tests: Tests = 10,
    controls: Controls = 4,
    shots: Shots = None,
    correlation: Correlation = 1.0,
    attributes: Attributes = None,
    match_signal: Match = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Write trials: examples in which value and trait agree, tests in which they conflict."""
    bench = _generated(tuples, tests, controls, shots, correlation, attributes, match_signal, seed)
    bench.to_jsonl(out)
    audit = bench.audit()
    record = {"out": str(out), "trials": len(bench.trials), "value_acc": audit.value_acc, "trait_acc": audit.trait_acc}
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    typer.echo(f"saved {out}: {len(bench.cases)} tuples, {len(bench.trials)} trials")
    if audit.warning:
        typer.echo(audit.warning, err=True)


@app.command()
def run(
    trials: Annotated[
        Path | None, typer.Argument(help="JSONL of `generate`, or the authors' JSON; made anew if left out.")
    ] = None,
    model: Annotated[str, typer.Option(help="A folder, a .gguf file, a Hugging Face id or 'default'.")] = "default",
    endpoint: Annotated[str, typer.Option(help="URL of an OpenAI-compatible server that serves --model.")] = "",
    mode: Annotated[str, typer.Option(help="logprob (weights), text, or auto.")] = "auto",
    style: Annotated[str, typer.Option(help="baseline, explicit or cot.")] = "baseline",
    order: Annotated[str, typer.Option(help="both (position cancels) or random.")] = "both",
    limit: Annotated[int | None, typer.Option(min=1, help="Most trials, drawn at random.")] = None,
    by: Annotated[str | None, typer.Option(help="value, other_value, trait, context or shots.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="JSONL of the answers.")] = None,
    journal: Annotated[Path | None, typer.Option(help="Folder from which an interrupted run goes on.")] = None,
    tuples: Tuples = 16,
    tests: Tests = 3,
    controls: Controls = 2,
    shots: Shots = None,
    correlation: Correlation = 1.0,
    attributes: Attributes = None,
    match_signal: Match = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Ask a model, and print its value rate beside its control accuracy and position bias."""
    from touchstone.language.deep_value_benchmark.benchmark import DeepValueBenchmark
    from touchstone.language.deep_value_benchmark.check import chooser_for
    from touchstone.language.deep_value_benchmark.loading import from_json
    from touchstone.progress import Bars
    from touchstone.run import Run

    factors = ("value", "other_value", "trait", "context", "shots")
    for name, given, known in (
        ("mode", mode, ("auto", "logprob", "text")),
        ("style", style, ("baseline", "explicit", "cot")),
        ("order", order, ("both", "random")),
        ("by", by, (None, *factors)),
    ):
        if given not in known:
            raise InputError(f"--{name} {given!r}: expected one of {', '.join(str(k) for k in known if k)}")
    if trials is None:
        bench = _generated(tuples, tests, controls, shots, correlation, attributes, match_signal, seed)
    else:
        bench = from_json(trials) if trials.suffix == ".json" else DeepValueBenchmark.from_jsonl(trials)
    bars = Bars()
    subject = _load(model, endpoint, device, bars)
    work = Run(seed=seed, device=device, progress=bars, journal=journal)
    chooser = chooser_for(subject, mode, style)
    found = bench.run(chooser, style=style, order=order, limit=limit, run=work, name=subject.source)  # type: ignore[arg-type]
    if out is not None:
        found.to_jsonl(out)
    table = found.dvgr(by)  # type: ignore[arg-type]
    bias = found.position_bias() if found.both else None
    control = found.control_accuracy()
    if as_json:
        rows = table.astype(object).where(table.notna(), None).to_dict("records")
        shown: dict[str, Any] = {"model": subject.source, "style": style, "meaningful": found.meaningful, "rates": rows}
        shown["control_accuracy"] = None if control.n == 0 else control.value
        shown["position_bias"] = None if bias is None else bias.value
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    typer.echo(table.to_string(index=False, float_format=lambda value: f"{value:.3f}"))
    if control.n:
        typer.echo(f"control accuracy {control.value:.3f} [{control.low:.3f}, {control.high:.3f}], n = {control.n}")
        if not found.meaningful:
            typer.echo("the model does not follow the examples even where value and trait agree: the rate says nothing")
    if bias is not None:
        typer.echo(f"position bias {bias.value:+.3f}, for the first option")
    if out is not None:
        typer.echo(f"saved {out}")


def _generated(
    tuples: int,
    tests: int,
    controls: int,
    shots: list[int] | None,
    correlation: float,
    attributes: Path | None,
    match_signal: bool,
    seed: int,
) -> DeepValueBenchmark:
    from touchstone.language.deep_value_benchmark import attributes as tables
    from touchstone.language.deep_value_benchmark.benchmark import DeepValueBenchmark

    return DeepValueBenchmark.generate(
        tuples,
        tests_per=tests,
        controls_per=controls,
        shots=shots or [4],
        correlation=correlation,
        attributes=None if attributes is None else tables.Attributes.load(attributes),
        match_signal=match_signal,
        seed=seed,
    )


def _load(model: str, endpoint: str, device: str, bars: Any) -> Any:
    if endpoint:
        from touchstone.language.endpoint import RemoteModel

        return RemoteModel(endpoint, model)
    from touchstone.language import LanguageModel

    return LanguageModel.load(model, device=device, progress=bars.say)
