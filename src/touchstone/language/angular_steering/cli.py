"""``touchstone language steer``: fit a plane from two prompt files, write or chat at an angle, see what it costs."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from touchstone.errors import InputError
from touchstone.language.options import Device, Json, Model, Seed

if TYPE_CHECKING:
    import pandas as pd

    from touchstone.language.angular_steering.plane import SteeringPlane
    from touchstone.language.model import LanguageModel
    from touchstone.progress import Bars

__all__ = ["app"]

app = typer.Typer(
    name="steer",
    help="Turn one behaviour of a model up or down by rotating its activations.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Plane = Annotated[Path, typer.Option("--plane", help="File written by `steer fit`.")]
Degrees = Annotated[float, typer.Option("--degrees", help="0 is along the positive prompts, about 180 away from them.")]
Adaptive = Annotated[bool, typer.Option(help="Turn only activations on the positive side of the feature.")]
Form = Annotated[str, typer.Option(help="set (turn to the angle) or rotate (turn by it).")]
Layers = Annotated[str, typer.Option(help="all, discriminative, or block numbers such as 3,4,5.")]
System = Annotated[str | None, typer.Option(help="System message.")]
Tokens = Annotated[int, typer.Option("--max-new-tokens", help="Length of a reply.")]
Prompts = Annotated[Path, typer.Option("--prompts", help="File with one prompt a line.")]


@app.command()
def fit(
    positive: Annotated[Path, typer.Argument(help="File with one prompt a line that shows the behaviour.")],
    negative: Annotated[Path, typer.Argument(help="File with one prompt a line that does not.")],
    out: Annotated[Path, typer.Option("--out", help="Where to save the plane.")] = Path("plane.safetensors"),
    select: Annotated[str, typer.Option(help="max_sim, max_norm, mean or random.")] = "max_sim",
    second: Annotated[str, typer.Option(help="pca or random.")] = "pca",
    system: System = None,
    model: Model = "default",
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Find the plane in which the model's reading of two lists of prompts differs, and save it."""
    from touchstone.language.angular_steering.plane import SteeringPlane
    from touchstone.language.prompt import read_prompts

    if out.suffix != ".safetensors":
        raise InputError(f"--out {out}: expected a file that ends in .safetensors")
    lists = read_prompts(positive, "positive prompts"), read_prompts(negative, "negative prompts")
    bars = _bars()
    loaded = _load(model, device, bars)
    with bars.bar("reading prompts", len(lists[0]) + len(lists[1])) as advance:
        plane = SteeringPlane.fit(
            loaded, *lists, select=select, second=second, system=system, seed=seed, progress=advance
        )
    plane.save(out)
    chosen = None if plane.chosen is None else str(plane.sites[plane.chosen])
    found = {
        "plane": str(out),
        "model": plane.model,
        "prompts": [len(lists[0]), len(lists[1])],
        "chosen": chosen,
        "explained_variance": round(plane.explained_variance, 4),
        "cos_b1_pc0": round(plane.cos_b1_pc0, 4),
    }
    if as_json:
        table = plane.diagnostics.astype(object).where(plane.diagnostics.notna(), None)
        typer.echo(json.dumps(found | {"points": table.to_dict("records")}, indent=2))
    else:
        typer.echo(f"saved {out}: feature from {chosen or select}, {len(plane.sites)} points of {plane.model}")


@app.command()
def generate(
    prompts: Annotated[list[str], typer.Argument(help="Prompts; - reads them from stdin, one a line.")],
    plane: Plane,
    degrees: Degrees,
    adaptive: Adaptive = True,
    form: Form = "set",
    layers: Layers = "all",
    prompt_only: Annotated[bool, typer.Option(help="Steer while the prompt is read and not after.")] = False,
    system: System = None,
    max_new_tokens: Tokens = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    model: Model = "default",
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Write replies at an angle."""
    texts = [line.strip() for line in sys.stdin if line.strip()] if prompts == ["-"] else prompts
    if not texts:
        raise InputError("prompts: none on stdin")
    bars = _bars()
    loaded, turned = _load_both(model, plane, device, bars)
    options: dict[str, Any] = {"adaptive": adaptive, "layers": _layers(layers), "prompt_only": prompt_only}
    with bars.bar("writing", len(texts)) as advance, turned.steer(loaded, degrees, form=_form(form), **options):
        replies = loaded.generate(
            texts, system=system, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, progress=advance
        )
    if as_json:
        records = [{"prompt": p, "degrees": degrees, "reply": r} for p, r in zip(texts, replies, strict=True)]
        typer.echo(json.dumps(records, indent=2, ensure_ascii=False))
        return
    for prompt, reply in zip(texts, replies, strict=True):
        typer.echo(f"> {prompt}\n{reply}\n" if len(texts) > 1 else reply)


@app.command()
def chat(
    plane: Plane,
    degrees: Degrees = 0.0,
    adaptive: Adaptive = True,
    form: Form = "set",
    layers: Layers = "all",
    system: System = None,
    max_new_tokens: Tokens = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.7,
    model: Model = "default",
    device: Device = "auto",
    seed: Seed = 0,
) -> None:
    """Chat at an angle; /angle 90 turns the dial, /off and /on stop and start steering, /new forgets, /quit ends."""
    loaded, turned = _load_both(model, plane, device, _bars())
    steered = turned.attach(loaded, degrees, adaptive=adaptive, form=_form(form), layers=_layers(layers))
    talk: list[dict[str, str]] = []
    typer.echo(f"{loaded.source} at {degrees:g}°; /angle N, /off, /on, /new, /quit", err=True)
    with steered:
        for turn in range(10_000):
            try:
                line = input("> ").strip()
            except EOFError:
                break
            if line == "/quit":
                break
            if line.startswith("/"):
                if line == "/new":
                    talk.clear()
                else:
                    _command(steered, line)
                continue
            if not line:
                continue
            talk.append({"role": "user", "content": line})
            try:
                [reply] = loaded.generate(
                    [talk],
                    system=system,
                    max_new_tokens=max_new_tokens,
                    temperature=temperature,
                    seed=seed + turn,
                    stream=lambda i, piece: typer.echo(piece, nl=False),
                )
            except InputError as error:
                talk.pop()
                typer.echo(f"{error}; /new starts over", err=True)
                continue
            typer.echo("")
            talk.append({"role": "assistant", "content": reply})


def _command(steered: Any, line: str) -> None:
    word, _, rest = line.partition(" ")
    try:
        if word == "/angle":
            steered.set_degrees(float(rest))
        elif word == "/off":
            steered.detach()
        elif word == "/on":
            steered.set_degrees(steered.degrees)
        else:
            raise InputError(f"{word}: expected /angle N, /off, /on, /new or /quit")
        typer.echo(f"at {steered.degrees:g}°" if steered.attached else "not steered", err=True)
    except ValueError as error:
        typer.echo(str(error), err=True)


@app.command()
def sweep(
    plane: Plane,
    prompts: Prompts,
    positive: Annotated[list[str], typer.Option("--positive", help="Continuation of the behaviour; repeat it.")],
    negative: Annotated[list[str], typer.Option("--negative", help="Continuation against it; repeat it.")],
    angles: Annotated[int, typer.Option(min=2, help="How many angles on the circle.")] = 12,
    adaptive: Adaptive = True,
    form: Form = "set",
    layers: Layers = "all",
    system: System = None,
    out: Annotated[Path | None, typer.Option("--out", help="CSV file to write.")] = None,
    model: Model = "default",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure the behaviour and the perplexity of neutral text around the circle."""
    from touchstone.language.angular_steering.arms import Rotation, Unsteered
    from touchstone.language.angular_steering.prompts import NEUTRAL_TEXTS
    from touchstone.language.angular_steering.sweeping import Contrast, perplexities, summary
    from touchstone.language.angular_steering.sweeping import sweep as measure
    from touchstone.language.prompt import read_prompts
    from touchstone.run import Run

    asked = read_prompts(prompts)
    bars = _bars()
    loaded, turned = _load_both(model, plane, device, bars)
    circle = tuple(360.0 * k / angles for k in range(angles))
    arm = Rotation(turned, circle, adaptive=adaptive, form=_form(form), layers=_layers(layers))
    frame = measure(
        loaded,
        [Unsteered(), arm],
        asked,
        contrast=Contrast(tuple(positive), tuple(negative)),
        texts=NEUTRAL_TEXTS,
        system=system,
        run=Run(progress=bars),
    )
    table = summary(frame[frame["measure"] == "contrast"]).drop(columns=["measure", "unit"])
    cost = perplexities(frame)
    table["perplexity"] = [cost[(arm, value)] for arm, value in zip(table["arm"], table["value"], strict=True)]
    _print(table.rename(columns={"value": "degrees", "mean": "log_odds"}), out, as_json)


@app.command()
def calibrate(
    plane: Plane,
    prompts: Prompts,
    target: Annotated[float, typer.Option(help="Wanted share of refusals, 0 to 1.")],
    judge: Annotated[str, typer.Option(help="prefix, tfidf or logprob.")] = "prefix",
    start: Annotated[float, typer.Option(help="Angle from which the circle is searched.")] = 0.0,
    adaptive: Adaptive = True,
    form: Form = "set",
    layers: Layers = "all",
    system: System = None,
    max_new_tokens: Tokens = 48,
    model: Model = "default",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Find the angle at which a wanted share of prompts is refused."""
    from dataclasses import asdict

    from touchstone.language.angular_steering.calibration import calibrate as find
    from touchstone.language.prompt import read_prompts
    from touchstone.language.refusal import RefusalJudge

    asked = read_prompts(prompts)
    if judge not in ("prefix", "tfidf", "logprob"):
        raise InputError(f"--judge {judge!r}: expected prefix, tfidf or logprob")
    bars = _bars()
    loaded, turned = _load_both(model, plane, device, bars)
    kind: Any = judge
    bars.say("searching the circle")
    found = find(
        turned,
        loaded,
        asked,
        target,
        judge=RefusalJudge(kind, model=loaded) if judge == "logprob" else RefusalJudge(kind),
        start=start,
        system=system,
        max_new_tokens=max_new_tokens,
        adaptive=adaptive,
        form=_form(form),
        layers=_layers(layers),
    )
    if as_json:
        record = {"degrees": found.degrees, "target": target, "reached": found.reached, "rate": asdict(found.rate)}
        typer.echo(json.dumps(record | {"trace": found.trace.to_dict("records")}, indent=2))
        return
    rate = found.rate
    word = "inside" if found.reached else "outside"
    typer.echo(
        f"{found.degrees:.1f}°: refusal rate {rate.value:.2f} [{rate.low:.2f}, {rate.high:.2f}] on {rate.n} prompts; "
        f"the target {target:g} is {word} the interval"
    )


@app.command()
def card(
    plane: Plane,
    degrees: Annotated[list[float], typer.Option("--degrees", help="An angle; repeat it.")],
    adaptive: Adaptive = True,
    form: Form = "set",
    layers: Layers = "all",
    out: Annotated[Path | None, typer.Option("--out", help="CSV file to write.")] = None,
    model: Model = "default",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Show the side effects of angles: neutral text and the tone of unrelated prompts, against no steering."""
    from touchstone.language.angular_steering.arms import Rotation
    from touchstone.language.angular_steering.card import side_effects
    from touchstone.run import Run

    bars = _bars()
    loaded, turned = _load_both(model, plane, device, bars)
    arm = Rotation(turned, tuple(degrees), adaptive=adaptive, form=_form(form), layers=_layers(layers))
    table = side_effects(loaded, arm, run=Run(progress=bars))
    _print(table.rename(columns={"value": "degrees"}), out, as_json)


def _bars() -> Bars:
    from touchstone.progress import Bars

    return Bars()


def _load(model: str, device: str, bars: Bars) -> LanguageModel:
    from touchstone.language import LanguageModel

    return LanguageModel.load(model, device=device, progress=bars.say)


def _load_both(model: str, plane: Path, device: str, bars: Bars) -> tuple[LanguageModel, SteeringPlane]:
    from touchstone.language.angular_steering.plane import SteeringPlane

    # The plane first: a wrong file is found before the model takes its time.
    found = SteeringPlane.load(plane)
    loaded = _load(model, device, bars)
    found.check_fits(loaded, warn=False)
    if found.model != loaded.source:
        warnings.filterwarnings("ignore", message="the plane was fitted on")
        bars.say(f"the plane was fitted on {found.model}, not on {loaded.source}")
    return loaded, found


def _form(text: str) -> Literal["set", "rotate"]:
    if text in ("set", "rotate"):
        return text  # type: ignore[return-value]
    raise InputError(f"--form {text!r}: expected set or rotate")


def _layers(text: str) -> Any:
    if text in ("all", "discriminative"):
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--layers {text!r}: expected all, discriminative or block numbers such as 3,4,5") from None


def _print(table: pd.DataFrame, out: Path | None, as_json: bool) -> None:
    from touchstone.files import write_text

    if out is not None:
        write_text(out, table.to_csv(index=False, lineterminator="\n"))
    if as_json:
        typer.echo(json.dumps(json.loads(table.to_json(orient="records")), indent=2))
    elif out is None:
        typer.echo(table.to_string(index=False, float_format=lambda number: f"{number:.3f}"))
    else:
        typer.echo(f"wrote {out}")
