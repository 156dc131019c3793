"""``touchstone language red-team``: attack the guard rails of your own model, compare attacks, harden it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from touchstone.errors import InputError
from touchstone.language.options import Device, Json, Model, Seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from touchstone.language.largo.largo import Largo
    from touchstone.language.largo.result import Behaviour, LargoResult
    from touchstone.language.largo.trial import Attack
    from touchstone.progress import Bars

__all__ = ["app"]

app = typer.Typer(
    name="red-team",
    help="Test how easily the guard rails of your own model give way to fluent text, and what helps against it.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[
    Path | None,
    typer.Argument(help="JSONL of yours: goal, target (opening words of a reply that complies), on_task (words)."),
]
Own = Annotated[bool, typer.Option("--own-model", help="You own the model or answer for it, and test it to harden it.")]
System = Annotated[str | None, typer.Option("--system", help="System message that holds your rule.")]
Length = Annotated[int, typer.Option("--suffix-len", min=1, help="Tokens of the text that is looked for.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds of LARGO; each tries one text.")]
Steps = Annotated[int, typer.Option(min=1, help="Gradient steps a round.")]
Rate = Annotated[float, typer.Option("--lr", help="Step size; the paper's 1e-3 is for models of billions of weights.")]
Spend = Annotated[int | None, typer.Option("--budget", min=1, help="Token-forwards a behaviour.")]
Keep = Annotated[bool, typer.Option("--keep-text", help="Write texts and replies in clear, not as hashes.")]
Out = Annotated[Path | None, typer.Option("--out", help="JSONL of the results.")]

_ATTACKS = ("largo", "gcg", "genetic", "zero-latent", "random-latent", "nearest-token", "uniform")


@app.command()
def attack(
    behaviours: File = None,
    own_model: Own = False,
    model: Model = "default",
    system: System = None,
    suffix_len: Length = 16,
    rounds: Rounds = 4,
    steps: Steps = 15,
    lr: Rate = 1e-2,
    budget: Spend = None,
    out: Out = None,
    keep_text: Keep = False,
    latents: Annotated[Path | None, typer.Option(help="Safetensors of the latents.")] = None,
    benign: Annotated[
        Path | None, typer.Option(help="File with one harmless prompt a line: measures defences on what was found.")
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="JSONL of pairs to train on against what was found; needs --benign.")
    ] = None,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run LARGO on every behaviour; without a file, on requests that a harmless house rule forbids."""
    from touchstone.language.largo.result import write_latents, write_results
    from touchstone.language.prompt import read_prompts

    if pairs is not None and benign is None:
        raise InputError("--pairs: needs --benign, prompts whose answers keep the model from learning to refuse")
    harmless = [] if benign is None else read_prompts(benign, "benign prompts")
    if benign is not None and len(harmless) < 4:
        raise InputError(f"--benign {benign}: {len(harmless)} prompts; expected 4 or more, half of them for thresholds")
    bars, chosen = _bars(), _behaviours(behaviours)
    tool = _largo(
        bars, behaviours, own_model, model, system, suffix_len, device, seed,
        rounds=rounds, steps=steps, lr=lr, budget=budget,
    )  # fmt: skip
    with bars.bar("behaviours", len(chosen)) as advance:
        results = tool.run(chosen, progress=advance)
    if out is not None:
        write_results(out, results, keep_text=keep_text)
    if latents is not None:
        write_latents(latents, results)
    found = [(one, result.text) for one, result in zip(chosen, results, strict=True) if result.broke]
    defences = _defences(tool, found, harmless, bars) if found and harmless else None
    if pairs is not None and found:
        from touchstone.language.largo.pairs import export_pairs

        bars.say(f"answering {len(harmless)} harmless prompts with the model itself")
        answers = tool.model.generate(harmless, system=system)
        export_pairs(pairs, found, list(zip(harmless, answers, strict=True)))
    if as_json:
        from touchstone.evidence import finite

        rows = [one.record(keep_text=keep_text) for one in results]
        shown = {"results": rows, "defences": None if defences is None else defences.to_dict("records")}
        typer.echo(json.dumps(finite(shown), indent=2, ensure_ascii=False))
        return
    _print_results(results, keep_text)
    if defences is not None:
        typer.echo("")
        typer.echo(defences.to_string(index=False, float_format="{:.2f}".format))
    if pairs is not None and not found:
        typer.echo(f"{pairs}: not written, for no guard gave way", err=True)


@app.command()
def compare(
    behaviours: File = None,
    own_model: Own = False,
    model: Model = "default",
    system: System = None,
    suffix_len: Length = 16,
    steps: Steps = 15,
    lr: Rate = 1e-2,
    budget: Annotated[int, typer.Option(min=1, help="Token-forwards a behaviour, the same for all.")] = 6000,
    attacks: Annotated[
        list[str] | None, typer.Option("--attack", help=f"Of {', '.join(_ATTACKS)}; repeat it. All if left out.")
    ] = None,
    out: Out = None,
    keep_text: Keep = False,
    plot: Annotated[Path | None, typer.Option(help="PNG: guards that hold, by what an attack has spent.")] = None,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """A leaderboard of attacks at one budget of token-forwards."""
    from touchstone.language.largo.comparing import leaderboard, survival
    from touchstone.language.largo.result import write_results

    names = attacks or list(_ATTACKS)
    unknown = [name for name in names if name not in _ATTACKS]
    if unknown:
        raise InputError(f"--attack {unknown[0]}: expected one of {', '.join(_ATTACKS)}")
    bars, chosen = _bars(), _behaviours(behaviours)
    first = _largo(
        bars, behaviours, own_model, model, system, suffix_len, device, seed, rounds=15, steps=steps, lr=lr,
        budget=budget, restarts=99,
    )  # fmt: skip
    results: list[LargoResult] = []
    for name in dict.fromkeys(names):
        with bars.bar(name, len(chosen)) as advance:
            results += _rival(name, first, steps, lr).run(chosen, progress=advance)
    if out is not None:
        write_results(out, results, keep_text=keep_text)
    board = leaderboard(results)
    if plot is not None:
        from touchstone.files import write_bytes
        from touchstone.language.largo import figures

        write_bytes(plot, figures.survival(survival(results, budget)).png)
    if as_json:
        from touchstone.evidence import finite

        typer.echo(json.dumps(finite(board.to_dict("records")), indent=2))
        return
    typer.echo(board.to_string(index=False, float_format="{:.3g}".format))


@app.command()
def margin(
    behaviours: File = None,
    own_model: Own = False,
    model: Model = "default",
    system: System = None,
    around: Annotated[
        str, typer.Option(help="Harmless text after the request, whose embeddings are moved.")
    ] = "Thank you very much for your kind help today.",
    steps: Steps = 30,
    lr: Rate = 1e-2,
    radius: Annotated[float, typer.Option(help="Of the balls, in mean norms of the token embeddings.")] = 0.5,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """How likely a complying reply gets with embeddings near a harmless text's: a smooth score between checkpoints."""
    from touchstone.language.largo.margin import guard_margin

    bars, chosen = _bars(), _behaviours(behaviours)
    tool = _largo(bars, behaviours, own_model, model, system, 1, device, seed)
    with bars.bar("behaviours", len(chosen)) as advance:
        frame = guard_margin(tool, chosen, around=around, radius=radius, steps=steps, lr=lr, progress=advance)
    if as_json:
        typer.echo(json.dumps(frame.to_dict("records"), indent=2, ensure_ascii=False))
        return
    typer.echo(frame.to_string(index=False, float_format="{:.3f}".format))
    typer.echo(f"mean margin {frame['margin'].mean():.3f} nats a token (higher is more robust)")


@app.command()
def universal(
    train: Annotated[Path, typer.Argument(help="JSONL of behaviours to optimise for.")],
    test: Annotated[Path, typer.Argument(help="JSONL of other behaviours to measure on.")],
    own_model: Own = False,
    model: Model = "default",
    system: System = None,
    suffix_len: Length = 16,
    epochs: Annotated[int, typer.Option(min=1, help="Each ends with a text; the paper's code has 100.")] = 10,
    passes: Annotated[int, typer.Option(min=1, help="Over the training behaviours, an epoch.")] = 25,
    lr: Rate = 1e-2,
    keep_text: Keep = False,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """One text for many behaviours, measured on others."""
    from touchstone.language.largo.result import digest

    bars, learn, hold = _bars(), _behaviours(train), _behaviours(test)
    tool = _largo(bars, train, own_model, model, system, suffix_len, device, seed, lr=lr)
    with bars.bar("epochs", epochs) as advance:
        found = tool.universal(learn, hold, epochs=epochs, passes=passes, progress=advance)
    rows = [
        {
            "epoch": one.epoch,
            "train": one.train.value,
            "test": one.test.value,
            "test_low": one.test.low,
            "test_high": one.test.high,
            "loss": one.loss,
            "text" if keep_text else "sha256": one.text if keep_text else digest(one.text),
        }
        for one in found
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for row in rows:
        typer.echo("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))


@app.command()
def hunt(
    behaviours: File = None,
    own_model: Own = False,
    model: Model = "default",
    system: System = None,
    suffix_len: Length = 16,
    rounds: Rounds = 8,
    steps: Steps = 15,
    lr: Rate = 1e-2,
    budget: Spend = None,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Look for a planted trigger: the words that texts need to break most of the guards."""
    from touchstone.language.largo.hunting import hunt as look

    bars, chosen = _bars(), _behaviours(behaviours)
    tool = _largo(
        bars, behaviours, own_model, model, system, suffix_len, device, seed,
        rounds=rounds, steps=steps, lr=lr, budget=budget,
    )  # fmt: skip
    with bars.bar("behaviours", len(chosen)) as advance:
        found = look(tool, chosen, progress=advance)
    record = {"broke": len(found.triggers), "behaviours": len(chosen), "shared": found.shared}
    if as_json:
        typer.echo(json.dumps(record | {"triggers": found.triggers}, indent=2, ensure_ascii=False))
        return
    typer.echo(f"{len(found.triggers)} of {len(chosen)} guards gave way")
    typer.echo(f"words that most of them share: {' '.join(found.shared) or 'none'}")


def _bars() -> Bars:
    from touchstone.progress import Bars

    return Bars()


def _behaviours(path: Path | None) -> list[Behaviour]:
    from touchstone.language.largo.house_rule import BEHAVIOURS
    from touchstone.language.largo.result import read_behaviours

    return list(BEHAVIOURS[:4]) if path is None else read_behaviours(path)


def _largo(
    bars: Bars,
    behaviours: Path | None,
    own_model: bool,
    model: str,
    system: str | None,
    suffix_len: int,
    device: str,
    seed: int,
    **options: Any,
) -> Largo:
    from touchstone.language import LanguageModel
    from touchstone.language.largo.house_rule import RULE
    from touchstone.language.largo.largo import Largo

    if not own_model:
        raise InputError("--own-model: pass it to confirm that the model is yours, or yours to answer for")
    loaded = LanguageModel.load(model, device=device, progress=bars.say)
    rule = RULE if system is None and behaviours is None else system
    return Largo(
        loaded, acknowledge_own_model=True, system=rule, suffix_len=suffix_len, seed=seed,
        **({"restarts": 1} | options),
    )  # fmt: skip


def _rival(name: str, largo: Largo, steps: int, lr: float) -> Attack:
    from touchstone.language.largo import rivals

    if name == "largo":
        return largo
    shared: dict[str, Any] = {
        "acknowledge_own_model": True,
        "template": largo.template,
        "suffix_len": largo.suffix_len,
        "budget": largo.budget,
        "seed": largo.seed,
    }
    if name in ("zero-latent", "random-latent"):
        return rivals.BestOfN(largo.model, latent=name.removesuffix("-latent"), **shared)  # type: ignore[arg-type]
    if name == "nearest-token":
        return rivals.NearestToken(largo.model, steps=steps, lr=lr, **shared)
    if name == "gcg":
        return rivals.GCG(largo.model, width=32, **shared)
    return rivals.Genetic(largo.model, **shared) if name == "genetic" else rivals.Uniform(largo.model, **shared)


def _defences(tool: Largo, found: Sequence[tuple[Behaviour, str]], harmless: list[str], bars: Bars) -> Any:
    from touchstone.language.largo import defences

    learn, other = harmless[::2], harmless[1::2]
    chosen: list[defences.Defence] = [
        defences.PerplexityFilter(tool.model, learn),
        defences.SmoothVote(seed=tool.seed),
        defences.Paraphrase.by(tool.model),
    ]
    goals = [behaviour.goal for behaviour, _ in found]
    if len(goals) >= 2:
        chosen.append(defences.ActivationProbe(tool, goals, learn))
    bars.say(f"measuring {len(chosen)} defences on {len(found)} texts")
    return defences.defence_report(tool, found, chosen, other)


def _print_results(results: Sequence[LargoResult], keep_text: bool) -> None:
    from touchstone.language.largo.result import digest

    for one in results:
        if one.plain_broke:
            typer.echo(f"asked plainly, it complies: {one.goal}")
            continue
        what = "gave way" if one.broke else "held"
        latent = min((min(r["latent"]) for r in one.losses if r["latent"]), default=float("nan"))
        typer.echo(
            f"{what}: {one.goal}  texts tried {one.checks}, loss plain {one.plain_loss:.2f}, latent {latent:.2f}, "
            f"words {one.loss:.2f}, perplexity {one.perplexity:.0f}, "
            + (f"text {one.text!r}" if keep_text else f"sha256 {digest(one.text)[:16]}")
        )
    guarded = [one for one in results if not one.plain_broke]
    typer.echo(f"{sum(one.broke for one in guarded)} of {len(guarded)} guards gave way")
