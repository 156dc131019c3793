"""The command line. Each room adds its own verbs from ``<room>/cli.py``, imported only when one is called."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from touchstone.errors import InputError, TouchstoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from touchstone.catalog import Method
    from touchstone.plan import Plan
    from touchstone.run import Run

__all__ = ["app", "main"]


class _Rooms(TyperGroup):
    """Adds a command group for every room that has verbs, without importing the room until it is called."""

    # Contexts and commands are typed loosely: typer carries its own copy of click from 0.29 on, not before.

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_rooms()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None or cmd_name not in _rooms():
            return command
        asked = {argument for argument in sys.argv[1:] if not argument.startswith("-")}
        if cmd_name not in asked and ctx.invoked_subcommand is None:
            # Listing the rooms needs their names and a line of help, not their code.
            return TyperGroup(name=cmd_name, help=_rooms()[cmd_name])
        return _room_command(cmd_name)


def _rooms() -> dict[str, str]:
    from touchstone.catalog import ROOMS

    here = Path(__file__).parent
    return {room: line for room, line in ROOMS.items() if (here / room / "cli.py").is_file()}


def _room_command(room: str) -> Any:
    from importlib import import_module

    return typer.main.get_command(import_module(f"touchstone.{room}.cli").app)


app = typer.Typer(
    name="touchstone",
    cls=_Rooms,
    help="Check a machine-learning model, remedy what is found, and prove what a method is worth.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models = typer.Typer(name="models", help="The embedded default model.", no_args_is_help=True)
app.add_typer(models)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout and nothing else.")]
Seed = Annotated[int, typer.Option(help="Every random number follows from it.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, …; auto takes a GPU where there is one.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write; default runs/<time>-<name>.")]
EngineName = Annotated[str, typer.Option("--engine", help="local or ray.")]
Workers = Annotated[int, typer.Option(help="Processes at once; 0 leaves it to the engine.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        from touchstone import __version__

        typer.echo(f"touchstone {__version__}")
        raise typer.Exit


@app.command()
def methods(
    room: Annotated[str | None, typer.Option(help="Only the methods of this room.")] = None,
    as_json: Json = False,
) -> None:
    """List the 38 methods: what each is for, its room, and what of it works today."""
    from dataclasses import asdict

    from touchstone.catalog import METHODS, ROOMS

    if room is not None and room not in ROOMS:
        raise InputError(f"room {room!r}: expected one of {', '.join(ROOMS)}")
    chosen = [record for record in METHODS if room in (None, record.room)]
    if as_json:
        typer.echo(json.dumps([asdict(record) | {"url": record.url} for record in chosen], indent=2))
        return
    console = _console()
    for name, line in ROOMS.items():
        here = [record for record in chosen if record.room == name]
        if here:
            console.print(f"\n[bold]{name}[/bold]  [dim]{line}[/dim]")
            console.print(_table_of(here))


def _table_of(records: Sequence[Method]) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
    table.add_column(width=28, no_wrap=True)
    table.add_column()
    for record in records:
        works = f" [green]\\[{', '.join(record.offers)}][/green]" if record.offers else " [dim](not built yet)[/dim]"
        table.add_row(record.slug, record.purpose + works)
    return table


@app.command()
def audit(
    target: Annotated[
        str, typer.Argument(metavar="[PLAN.toml|MODEL|decisions]", help="A plan, a model to audit, or 'decisions'.")
    ] = "default",
    table: Annotated[
        Path | None, typer.Argument(metavar="[PREDICTIONS]", help="With 'decisions': a .csv or .parquet, or a plan.")
    ] = None,
    before: Annotated[
        str, typer.Option(help="MODEL before a change: adds the checks that compare the two, such as unlearning.")
    ] = "",
    ledger: Annotated[str, typer.Option(help="Ledger of fingerprints: adds their verification.")] = "",
    forgotten: Annotated[
        str, typer.Option(help="JSONL of deleted records, with --before: how many can be extracted.")
    ] = "",
    graph: Annotated[
        str, typer.Option(help="JSON of triples and unlearned targets, with --before: can they be inferred?")
    ] = "",
    truth: Annotated[str, typer.Option(help="With 'decisions': column of outcomes.")] = "",
    score: Annotated[list[str] | None, typer.Option(help="Column of a model's probabilities; repeat.")] = None,
    decision: Annotated[list[str] | None, typer.Option(help="Column of a model's decisions; repeat.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Column of an attribute to compare by; repeat.")] = None,
    favourable: Annotated[str, typer.Option(help="Value of outcomes and decisions that people want.")] = "1",
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted audit in --out.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 1 also if a limit is not decided or a check was left out.")
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(help="Time budget: checks measure less or more to fit; what does not fit is left out."),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    engine: EngineName = "local",
    workers: Workers = 0,
    as_json: Json = False,
) -> None:
    """Run checks on a model or a table of predictions; exit code 1 if a limit is broken.

    `touchstone audit decisions FILE.csv` audits a table: fairness by group, calibration, abstention, monoculture.
    Columns that are not named are guessed from their names, and shown.
    """
    from touchstone.audit import run_audit

    if resume and out is None:
        raise InputError("--resume: needs --out, the folder of the audit to continue")
    say, run = _run(seed, device, engine, workers)
    columns = {"truth": truth, "scores": score, "decisions": decision, "groups": group}
    subject = None
    if target == "decisions":
        for option, value in (
            ("--before", before),
            ("--ledger", ledger),
            ("--forgotten", forgotten),
            ("--graph", graph),
        ):
            if value:
                raise InputError(f"{option}: is for audits of a model")
        plan, subject = _table_plan(table, columns, favourable, say)
        target = str(table)
    else:
        if table is not None:
            raise InputError(f"{table}: expected one plan or model; a table of predictions goes after 'decisions'")
        named = next((f"--{name.rstrip('s')}" for name, value in columns.items() if value), None)
        if named or favourable != "1":
            raise InputError(f"{named or '--favourable'}: is for audits of a table, or stands in the plan")
        plan = _plan(target, before, {"ledger": ledger, "forgotten": forgotten, "graph": graph})
    place = out or _default_out("audit", Path(target).stem if target.endswith(".toml") else target)
    result = run_audit(plan, place, run=run, subject=subject, resume=resume, minutes=minutes, say=say)
    if as_json:
        typer.echo(json.dumps(result.record | {"evidence": [_content(e) for e in result.evidences]}, indent=2))
    else:
        _show(plan.title, result.evidences, result.record, place)
    undecided = strict and result.verdict == "undecided"
    raise typer.Exit(result.exit_code or int(undecided))


@app.command()
def study(
    slugs: Annotated[list[str], typer.Argument(metavar="SLUG…|all", help="Methods to study.")],
    scale: Annotated[str, typer.Option(help="smoke (< 20 s), cpu (< 5 min) or gpu.")] = "cpu",
    seeds: Annotated[int, typer.Option(help="Number of seeds, from --seed on.")] = 1,
    out: Out = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace Evidence that is in --out.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Option of the study, such as model=PATH; repeat it."),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    engine: EngineName = "local",
    workers: Workers = 0,
    as_json: Json = False,
) -> None:
    """Re-measure a paper's headline claims against their baselines in one run."""
    from touchstone.report import write_report
    from touchstone.study import run_studies

    _, run = _run(seed, device, engine, workers)
    place = out or _default_out("study", slugs[0])
    options = dict(_setting(text) for text in settings or [])
    found = run_studies(slugs, _scale(scale), run=run, seeds=seeds, out=place, replace_out=replace, options=options)
    for slug, evidence in found.items():
        write_report(place if len(found) == 1 else place / slug, evidence.title, [evidence])
    if as_json:
        contents = [_content(evidence) for evidence in found.values()]
        typer.echo(json.dumps(contents[0] if len(contents) == 1 else contents, indent=2, ensure_ascii=False))
        return
    for slug, evidence in found.items():
        _show(evidence.title, [evidence], None, place if len(found) == 1 else place / slug)


@app.command()
def report(run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of an audit or a study.")]) -> None:
    """Write report.html of a run anew and show its summary."""
    from touchstone.report import load_run, write_report

    title, evidences, record = load_run(run_dir)
    write_report(run_dir, title, evidences, record)
    _show(title, evidences, record, run_dir)


@models.command("fetch")
def models_fetch(force: Annotated[bool, typer.Option("--force", help="Make it anew.")] = False) -> None:
    """Fetch the embedded default model, check it, dequantise it and cache it."""
    _need_torch()
    from touchstone.language import embedded
    from touchstone.progress import Bars

    typer.echo(embedded.fetch(force=force, progress=Bars().say))


@models.command("list")
def models_list(as_json: Json = False) -> None:
    """Show the embedded model and whether it is cached."""
    from touchstone.language import embedded

    record = {"name": embedded.NAME, "cached": embedded.folder().is_dir(), "folder": str(embedded.folder())}
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    else:
        typer.echo(f"{record['name']}  {'cached' if record['cached'] else 'not fetched'}  {record['folder']}")


def _need_torch() -> None:
    from touchstone.errors import MissingExtraError

    if find_spec("torch") is None or find_spec("transformers") is None:
        raise MissingExtraError("A language model", "language")


def _plan(target: str, before: str, files: dict[str, str]) -> Plan:
    from touchstone.plan import TablePlan, default_plan, load_plan

    given = {name: value for name, value in files.items() if value}
    if not target.endswith(".toml"):
        _need_torch()
        return default_plan(target, before=before, given=given)
    places = [("--before", before, "[subject] before")]
    for option, value, place in (
        *places,
        *((f"--{name}", value, f"{name} of the check") for name, value in given.items()),
    ):
        if value:
            raise InputError(f"{option}: a plan says so itself, under {place}")
    plan = load_plan(target)
    if not isinstance(plan, TablePlan):
        _need_torch()
    return plan


def _table_plan(
    table: Path | None, columns: dict[str, Any], favourable: str, say: Callable[[str], None]
) -> tuple[Plan, Any]:
    """The plan of ``touchstone audit decisions``, and the table if it was read on the way."""
    from touchstone.audit import load_table
    from touchstone.plan import TablePlan, TableSubject, load_plan, table_plan

    if table is None:
        raise InputError("decisions: needs a table of predictions, a .csv or .parquet file, or a plan")
    if table.suffix == ".toml":
        named = next((f"--{name.rstrip('s')}" for name, value in columns.items() if value), None)
        if named or favourable != "1":
            raise InputError(f"{named or '--favourable'}: a plan says so itself, under [subject]")
        plan = load_plan(table)
        if not isinstance(plan, TablePlan):
            raise InputError(f"plan {table}: [subject] names no predictions")
        return plan, None
    roles = {role: value for role, value in columns.items() if value}
    subject = TableSubject(predictions=str(table), favourable=favourable, **roles)
    read = load_table(subject, say)
    return table_plan(subject, read), read


def _run(seed: int, device: str, engine: str, workers: int) -> tuple[Any, Run]:
    from touchstone.engine import engine_named
    from touchstone.progress import Bars
    from touchstone.run import Run

    bars = Bars()
    return bars.say, Run(seed=seed, device=device, engine=engine_named(engine, workers), progress=bars)


def _scale(name: str) -> Literal["smoke", "cpu", "gpu"]:
    if name in ("smoke", "cpu", "gpu"):
        return name  # type: ignore[return-value]
    raise InputError(f"--scale {name!r}: expected smoke, cpu or gpu")


def _setting(text: str) -> tuple[str, Any]:
    """``name=value``; numbers, booleans and null are read as such, anything else as text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(f"--set {text!r}: expected name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _default_out(command: str, name: str) -> Path:
    import re
    import time

    safe = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")[:40] or "run"
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{command}-{safe}"
    return next(p for p in (base, *(Path(f"{base}-{i}") for i in range(2, 100))) if not p.exists())


def _content(evidence: Any) -> Any:
    return json.loads(evidence.to_json())


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


def _show(title: str, evidences: list[Any], record: dict[str, Any] | None, place: Path) -> None:
    from touchstone.report import render_terminal

    console = _console()
    console.print(render_terminal(evidences, record))
    console.print(f"[bold]report[/bold]  {place / 'report.html'}", soft_wrap=True)


def main() -> None:
    """Entry point: an error that a user may meet is one line on stderr and exit code 2."""
    try:
        app()
    except TouchstoneError as error:
        line = " ".join(str(error).split())
        print(f"touchstone: {line}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("touchstone: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
