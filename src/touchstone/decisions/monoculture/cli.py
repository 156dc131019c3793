"""``touchstone decisions monoculture``: audit tables of decisions, and make one by prompting language models."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touchstone.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from touchstone.decisions.monoculture.prompting import Rows
    from touchstone.decisions.monoculture.report import AuditReport
    from touchstone.decisions.monoculture.schema import Schema
    from touchstone.decisions.monoculture.table import DecisionTable

__all__ = ["app"]

app = typer.Typer(
    name="monoculture",
    help="Do many models shut out the same people, or does it depend on whom one is judged by?",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout and nothing else.")]
Seed = Annotated[int, typer.Option(help="Every random number follows from it.")]
Groups = Annotated[str, typer.Option(help="Columns of attributes, separated by commas; guessed if left out.")]


@app.command()
def audit(
    tables: Annotated[
        list[Path],
        typer.Argument(help="Tables (.csv, .parquet) of decisions or scores, one column a model; one a task."),
    ],
    label: Annotated[str, typer.Option(help="Column of the outcome; guessed if left out.")] = "",
    models: Annotated[str, typer.Option(help="Columns of decisions, separated by commas; guessed if left out.")] = "",
    groups: Groups = "",
    favourable: Annotated[str, typer.Option(help="The value of outcomes and decisions that people want.")] = "1",
    threshold: Annotated[float, typer.Option(help="A score of at least this is an acceptance.")] = 0.5,
    eps: Annotated[float, typer.Option(help="Models within this much of the best are looked at.")] = 0.05,
    focus: Annotated[str, typer.Option(help="positive, negative or all outcomes.")] = "positive",
    success: Annotated[str, typer.Option(help="What counts: accept, reject or correct.")] = "accept",
    metric: Annotated[str, typer.Option(help="accuracy or balanced_accuracy.")] = "accuracy",
    split: Annotated[float, typer.Option(help="Share of cases on which models are selected and not measured.")] = 0.0,
    draws: Annotated[int, typer.Option(min=0, help="Bootstrap draws.")] = 500,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder: report.json, report.md, curves.png, pairs.csv, sweep.csv.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Agreement, recourse, ambiguity and discrepancy, between independent errors and strict monoculture."""
    from touchstone.decisions.monoculture import report as reports
    from touchstone.decisions.monoculture.table import DecisionTable

    if len({path.stem for path in tables}) < len(tables):
        raise InputError("tables: two files have the same name; a report is called after its table")
    if out is not None and out.exists():
        raise InputError(f"{out}: already exists; nothing was written")
    found = {}
    for path in tables:
        table = DecisionTable.read(
            path,
            label,
            models=_names(models),
            groups=_names(groups),
            favourable=favourable,
            threshold=threshold,
        )
        found[path.stem] = (
            table,
            reports.audit(
                table,
                eps,
                focus=focus,  # type: ignore[arg-type]
                favourable=success,  # type: ignore[arg-type]
                metric=metric,  # type: ignore[arg-type]
                split=split,
                n_boot=draws,
                seed=seed,
            ),
        )
    if out is not None:
        _write(out, found, focus=focus, favourable=success, metric=metric)
    if as_json:
        shown = {name: report.to_dict() for name, (_, report) in found.items()}
        typer.echo(json.dumps(shown if len(found) > 1 else next(iter(shown.values())), indent=2, ensure_ascii=False))
        return
    for name, (_, report) in found.items():
        if len(found) > 1:
            typer.echo(f"# {name}\n")
        typer.echo(report.to_markdown())
    if len(found) > 1:
        typer.echo(_side_by_side({name: report for name, (_, report) in found.items()}).to_string(index=False))


@app.command()
def prompt(
    out: Annotated[
        Path, typer.Option("--out", help="Folder: decisions.csv (for audit), scores.csv, prompts.json, schema.json.")
    ],
    models: Annotated[
        str, typer.Option(help="Models, separated by commas: folders, .gguf, ids or 'default'.")
    ] = "default",
    task: Annotated[str, typer.Option(help="'adult', or a .csv or .parquet file.")] = "adult",
    label: Annotated[str, typer.Option(help="Column of the outcome in a file.")] = "",
    favourable: Annotated[str, typer.Option(help="The value of the outcome that people want.")] = "1",
    schema: Annotated[
        Path | None, typer.Option(help="JSON of labels, values, question and choices; plain column names if left out.")
    ] = None,
    question: Annotated[str, typer.Option(help="Asked of every row, without a schema.")] = "",
    choices: Annotated[str, typer.Option(help="Answers of outcome 0 and 1, separated by a comma.")] = "No,Yes",
    groups: Annotated[str, typer.Option(help="Columns that the table keeps as attributes.")] = "",
    styles: Annotated[int, typer.Option(min=1, max=90, help="Prompt styles: 1, 10 (one aspect at a time) or 90.")] = 1,
    rows: Annotated[int, typer.Option(min=1, help="Rows to decide.")] = 200,
    fit_threshold: Annotated[int, typer.Option(min=2, help="Other rows, on which thresholds are chosen.")] = 200,
    shots: Annotated[int, typer.Option(min=0, help="Solved examples in front of every question.")] = 0,
    both_orders: Annotated[
        bool, typer.Option("--both-orders", help="Average over both orders of the answers.")
    ] = False,
    chat: Annotated[
        bool | None, typer.Option("--chat/--plain", help="Through the chat template; by default if any.")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="SQLite file of known scores, made if not there.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts in a batch.")] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Make a table of decisions by asking language models about the rows of a table."""
    from touchstone.decisions.monoculture.prompting import prompt_models
    from touchstone.decisions.monoculture.prompts import TabularPrompter, all_styles, one_at_a_time
    from touchstone.files import cache_folder, write_text, written_folder
    from touchstone.progress import Bars
    from touchstone.run import Run

    if out.exists():
        raise InputError(f"{out}: already exists; nothing was written")
    wanted = _names(models)
    if not wanted or len(set(wanted)) < len(wanted):
        raise InputError(f"--models {models!r}: expected at least one, each once")
    words, test, validation, examples = _task(
        task, label, favourable, schema, question, choices, (rows, fit_threshold), seed
    )
    kept = _names(groups) or (["sex", "race"] if task == "adult" else [])
    for name in kept:
        if name not in test.frame.columns:
            raise InputError(f"--groups {name!r}: the table has {', '.join(map(str, test.frame.columns[:12]))}")
    prompter = TabularPrompter(words)
    if shots:
        if examples is None:
            raise InputError(f"--shots {shots}: no rows are left for examples beside --rows and --fit-threshold")
        prompter = prompter.with_examples(examples.frame, examples.y, shots, seed)
    every = all_styles(words.names) if styles > 10 else one_at_a_time(words.names)
    found = prompt_models(
        {name: name for name in wanted},
        prompter,
        test,
        validation,
        every[:styles],
        Run(seed=seed, device=device, progress=Bars()),
        groups=kept,
        both_orders=both_orders,
        chat=chat,
        batch_size=batch_size,
        dtype=dtype,
        # What was asked before is not asked again, in this run or a later one.
        cache=cache or cache_folder() / "monoculture" / "scores.sqlite",
    )
    with written_folder(out) as new:
        found.table.save(new / "decisions.csv")
        found.scores.to_csv(new / "scores.csv", index=False, lineterminator="\n")
        write_text(new / "prompts.json", json.dumps(found.record(), indent=2, ensure_ascii=False) + "\n")
        write_text(new / "schema.json", words.to_json())
    worst = max(found.columns.to_dict(orient="records"), key=lambda row: float(row["flagged"]))
    flagged = float(worst["flagged"])
    shown = {
        "out": str(out),
        "rows": len(found.table),
        "models": wanted,
        "most_flagged": flagged,
        "columns": found.columns.to_dict(orient="records"),
    }
    if as_json:
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    typer.echo(
        f"saved {out}: {len(found.table)} rows decided by {len(found.table.models)} columns of {len(wanted)} models"
    )
    if flagged > 0.5:
        typer.echo(
            f"{worst['column']}: puts under a tenth on either answer in {flagged:.0%} of rows; try --chat or --plain"
        )
    typer.echo(f"next: touchstone decisions monoculture audit {out / 'decisions.csv'}")


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _write(
    out: Path, found: dict[str, tuple[DecisionTable, AuditReport]], *, focus: str, favourable: str, metric: str
) -> None:
    from touchstone.decisions.monoculture.report import deficit_sweep
    from touchstone.files import write_text, written_folder

    with written_folder(out) as new:
        for name, (table, report) in found.items():
            place = new / name if len(found) > 1 else new
            report.save(place / "report.json")
            write_text(place / "report.md", report.to_markdown())
            report.plot(place / "curves.png")
            report.pairs.to_csv(place / "pairs.csv", index=False, lineterminator="\n")
            sweep = deficit_sweep(table, focus=focus, favourable=favourable, metric=metric)  # type: ignore[arg-type]
            sweep.to_csv(place / "sweep.csv", index=False, lineterminator="\n")
        if len(found) > 1:
            side = _side_by_side({name: report for name, (_, report) in found.items()})
            side.to_csv(new / "tasks.csv", index=False, lineterminator="\n")


def _side_by_side(reports: dict[str, AuditReport]) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for name, report in reports.items():
        content: dict[str, Any] = report.content
        recourse = content["recourse"]
        rows.append(
            {
                "task": name,
                "models": content["m"],
                "cases": content["n"],
                "agreement": content["agreement"]["mean"],
                "independent": content["agreement"]["baseline_mean"],
                **{key: recourse[key] for key in ("none", "substantial", "full")},
                "ambiguity": content["ambiguity"],
                "discrepancy": content["discrepancy"],
                "correlation": content["equivalent_correlation"],
            }
        )
    return pd.DataFrame(rows).round(3)


def _task(
    task: str,
    label: str,
    favourable: str,
    schema: Path | None,
    question: str,
    choices: str,
    sizes: tuple[int, int],
    seed: int,
) -> tuple[Schema, Rows, Rows, Rows | None]:
    """Words, rows to decide, rows for thresholds, and rows for examples, all disjoint."""
    import numpy as np

    from touchstone.decisions.monoculture import adult
    from touchstone.decisions.monoculture.prompting import Rows
    from touchstone.decisions.monoculture.schema import Schema
    from touchstone.decisions.predictions import Predictions, read_table

    words = None if schema is None else Schema.read(schema)
    if task == "adult":
        whole = adult.load()
        frame, y, words = whole.frame, whole.y, words or adult.ADULT
    else:
        table = Predictions(read_table(task, "task"), truth=label or _missing("--label"), favourable=favourable)
        frame, y = table.frame.drop(columns=label), table.outcomes.astype(np.int8)
        if words is None:
            parts = _names(choices)
            if not question or len(parts) != 2:
                raise InputError("--question, --choices: a task of your own needs both, or a --schema")
            words = Schema.of(frame, question, (parts[0], parts[1]))
    if sum(sizes) > len(y):
        raise InputError(f"--rows {sizes[0]}, --fit-threshold {sizes[1]}: the task has {len(y)} rows in all")
    order = np.random.default_rng(seed).permutation(len(y))
    ends = (0, sizes[0], sum(sizes), min(len(y), sum(sizes) + 2000))
    picked = [order[begin:end] for begin, end in pairwise(ends)]
    test, validation = (Rows(frame.iloc[rows].reset_index(drop=True), y[rows]) for rows in picked[:2])
    spare = Rows(frame.iloc[picked[2]].reset_index(drop=True), y[picked[2]]) if len(picked[2]) else None
    return words, test, validation, spare


def _missing(option: str) -> str:
    raise InputError(f"{option}: a task of your own needs it")
