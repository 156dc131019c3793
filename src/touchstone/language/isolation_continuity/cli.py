"""``touchstone language continuity``: curves, positions, basins, periods, edits and small networks, as reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from touchstone.errors import InputError
from touchstone.language.options import Device, Dtype, Model, Seed

if TYPE_CHECKING:
    import pandas as pd

    from touchstone.language.isolation_continuity.bodies import Body
    from touchstone.language.isolation_continuity.report import Report
    from touchstone.language.model import LanguageModel
    from touchstone.progress import Bars
    from touchstone.run import Run

__all__ = ["app"]

app = typer.Typer(
    name="continuity",
    help="Measure how much of a prompt can change before the continuation does.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Prompt = Annotated[
    str, typer.Option("--prompt", help="Instruction in front of the body; '' for none (see the page for why not).")
]
Symbols = Annotated[str, typer.Option("--symbols", help="Common and rare symbol, single tokens, with a comma between.")]
Text = Annotated[Path | None, typer.Option("--text", help="File with a text to change, in place of a pattern.")]
Out = Annotated[Path | None, typer.Option("--out", help="JSON file to write the report to.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON on stdout and nothing else.")]

_PROMPT = "Continue the binary sequence."


@app.command()
def curve(
    lengths: Annotated[str, typer.Option(help="Tokens of the body.")] = "16,64,256",
    fractions: Annotated[str, typer.Option(help="Shares that change, beside one token.")] = "0.02,0.05,0.1,0.2,0.4",
    draws: Annotated[int, typer.Option(min=1, help="Edited prompts for each share.")] = 8,
    epsilon: Annotated[float, typer.Option(help="TV that counts as unnoticed.")] = 0.1,
    motif: Annotated[str, typer.Option(help="Symbols of one period, with commas between.")] = "0",
    symbols: Symbols = "0,1",
    text: Text = None,
    prompt: Prompt = _PROMPT,
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Measure how far the prediction moves with the share of changed tokens and with length."""
    from touchstone.language.isolation_continuity.curve import continuity_curve, summary

    wanted, shares = _whole("--lengths", lengths), _numbers("--fractions", fractions)
    loaded, run = _start(model, device, dtype, seed)
    body = _body(loaded, text, motif, symbols, max(wanted), prompt, seed)
    report = continuity_curve(
        loaded, body, lengths=wanted, fractions=shares, draws=draws, epsilon=epsilon, seed=seed, run=run
    )
    _give(report, out, as_json, summary(report.rows))


@app.command()
def position(
    length: Annotated[int, typer.Option(help="Tokens of the body.")] = 128,
    points: Annotated[int, typer.Option(help="Positions, evenly spread.")] = 24,
    draws: Annotated[int, typer.Option(min=1, help="Replacements at each position.")] = 1,
    motif: Annotated[str, typer.Option(help="Symbols of one period, with commas between.")] = "0",
    symbols: Symbols = "0,1",
    text: Text = None,
    prompt: Prompt = _PROMPT,
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Measure where in the prompt a single change still reaches the prediction."""
    from touchstone.language.isolation_continuity.position import position_profile

    loaded, run = _start(model, device, dtype, seed)
    body = _body(loaded, text, motif, symbols, length, prompt, seed)
    report = position_profile(loaded, body, length=length, points=points, draws=draws, seed=seed, run=run)
    _give(report, out, as_json, report.rows)


@app.command()
def basin(
    length: Annotated[int, typer.Option(help="Tokens of each pattern.")] = 96,
    fractions: Annotated[str, typer.Option(help="Shares that are corrupted.")] = "0.05,0.1,0.2,0.4",
    draws: Annotated[int, typer.Option(min=1, help="Corrupted prompts for each share.")] = 4,
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Measure how much of some patterns can be corrupted before they are not continued."""
    from touchstone.language.isolation_continuity.basin import attractor_basin, built_in_patterns

    shares = _numbers("--fractions", fractions)
    loaded, run = _start(model, device, dtype, seed)
    chosen = built_in_patterns(loaded, length=length)
    report = attractor_basin(loaded, chosen, fractions=shares, draws=draws, seed=seed, run=run)
    _give(report, out, as_json, report.rows)


@app.command()
def period(
    periods: Annotated[str, typer.Option(help="Periods to test.")] = "2,3,4,6,8,12,16,24,32,48,64",
    length: Annotated[int, typer.Option(help="Tokens of the body, at least twice the longest period.")] = 256,
    symbols: Symbols = "0,1",
    prompt: Prompt = _PROMPT,
    pairs: Annotated[bool, typer.Option("--pairs", help="Show which pairs of patterns are held together.")] = False,
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Measure which periodic patterns the model holds."""
    from touchstone.language.isolation_continuity.period import learnable_periods, pair_matrix

    chosen, two = _whole("--periods", periods), _two(symbols)
    loaded, run = _start(model, device, dtype, seed)
    report = learnable_periods(
        loaded, periods=chosen, symbols=two, length=length, prompt=prompt or None, seed=seed, run=run
    )
    _give(report, out, as_json, pair_matrix(report) if pairs else report.rows)


@app.command()
def edit(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="JSON list of {kind, before, after, answer_before, answer_after}; built-in ones if absent."
        ),
    ] = None,
    functions: Annotated[int, typer.Option(min=1, help="Built-in: functions of the standard library.")] = 30,
    texts: Annotated[int, typer.Option(min=1, help="Built-in: texts of each kind and length.")] = 2,
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Measure whether small edits that turn the right answer round turn the model's."""
    from touchstone.language.isolation_continuity.edit_sources import read_edits, syntax_edits, text_edits
    from touchstone.language.isolation_continuity.edits import decisive_edits

    if file is not None:
        edits = read_edits(file)
    else:
        edits = syntax_edits(functions=functions, seed=seed) + text_edits(each=texts, seed=seed)
    loaded, run = _start(model, device, dtype, seed)
    report = decisive_edits(loaded, edits, seed=seed, run=run)
    table = report.rows.groupby("kind", sort=False).mean(numeric_only=True).reset_index()
    _give(report, out, as_json, table)


@app.command()
def twin(
    positions: Annotated[str, typer.Option(help="rope, sinusoidal, nope, index or alibi.")] = "rope",
    attention: Annotated[str, typer.Option(help="softmax or logn.")] = "softmax",
    recurrent: Annotated[bool, typer.Option("--gru", help="A GRU in place of the transformer.")] = False,
    longest: Annotated[int, typer.Option(min=2, help="Longest prompt in training, in bits.")] = 24,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 700,
    seed: Seed = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Train a small network to recall a first bit, and see where the constant prompt captures its neighbour."""
    from touchstone.language.isolation_continuity.report import Report
    from touchstone.language.isolation_continuity.tiny import Architecture
    from touchstone.language.isolation_continuity.twin import Recall, recall_scores, train_recall

    architecture = Architecture(positions=positions, attention=attention, recurrent=recurrent)  # type: ignore[arg-type]
    _bars().say(f"training {architecture.name} for {steps} steps")
    network = train_recall(architecture, Recall(longest=longest, steps=steps), seed=seed)
    rows = recall_scores(network, [longest // 2, *(longest * k for k in (1, 2, 4, 8, 16, 32))], seed=seed)
    far = rows[rows["bits"] == 4 * longest].iloc[0]
    numbers = {"tv_at_4x": float(far["tv"]), "accuracy_at_4x": float(far["hits"] / far["rows"])}
    report = Report("twin", architecture.name, "", seed, rows, numbers, {"longest": longest, "steps": steps})
    _give(report, out, as_json, rows)


@app.command()
def compare(
    reports: Annotated[list[Path], typer.Argument(help="Files written with --out.")],
    as_json: Json = False,
) -> None:
    """Show the headline numbers of reports, a row a model."""
    from touchstone.language.isolation_continuity.report import Report
    from touchstone.language.isolation_continuity.report import compare as beside

    _show(beside([Report.load(path) for path in reports]), as_json)


@app.command()
def gate(
    reports: Annotated[list[Path], typer.Argument(help="Files written with --out.")],
    limit: Annotated[list[str], typer.Option("--limit", help="Such as 'p_max >= 16'; repeat it.")],
    as_json: Json = False,
) -> None:
    """Hold reports to limits: exit code 1 if one is broken."""
    from touchstone.evidence import Limit
    from touchstone.language.isolation_continuity.report import Report
    from touchstone.language.isolation_continuity.report import gate as hold

    bounds = {}
    for text in limit:
        name, _, bound = text.strip().partition(" ")
        bounds[name] = Limit.parse(bound)
    table = hold([Report.load(path) for path in reports], bounds)
    _show(table, as_json)
    if not table["allowed"].all():
        raise typer.Exit(1)


def _start(model: str, device: str, dtype: str, seed: int) -> tuple[LanguageModel, Run]:
    from touchstone.language import LanguageModel
    from touchstone.run import Run

    bars = _bars()
    return LanguageModel.load(model, device=device, dtype=dtype, progress=bars.say), Run(seed=seed, progress=bars)


def _bars() -> Bars:
    from touchstone.progress import Bars

    return Bars()


def _body(
    model: LanguageModel, text: Path | None, motif: str, symbols: str, length: int, prompt: str, seed: int
) -> Body:
    from touchstone.files import read_text
    from touchstone.language.isolation_continuity.bodies import passage, pattern

    if text is not None:
        # The built-in instruction speaks of sequences.
        asked = None if prompt == _PROMPT else prompt or None
        return passage(model, read_text(text, "--text"), prompt=asked or "Go on with the text.", seed=seed)
    return pattern(model, motif.split(","), symbols=_two(symbols), length=length, prompt=prompt or None)


def _two(text: str) -> tuple[str, str]:
    parts = text.split(",")
    if len(parts) != 2:
        raise InputError(f"--symbols {text!r}: expected two with a comma between, such as 0,1")
    return parts[0], parts[1]


def _whole(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text!r}: expected whole numbers such as 16,64") from None


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text!r}: expected numbers such as 0.05,0.1") from None


def _give(report: Report, out: Path | None, as_json: bool, table: pd.DataFrame) -> None:
    if out is not None:
        report.save(out)
    if as_json:
        typer.echo(report.to_json(), nl=False)
        return
    typer.echo(table.to_string(index=False, float_format=lambda number: f"{number:.3f}"))
    typer.echo(", ".join(f"{name} {value:.4g}" for name, value in report.numbers.items()))
    if out is not None:
        typer.echo(f"wrote {out}")


def _show(table: pd.DataFrame, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(json.loads(table.to_json(orient="records")), indent=2))
    else:
        typer.echo(table.to_string(index=False, float_format=lambda number: f"{number:.4g}"))
