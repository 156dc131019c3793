"""``touchstone language obfuscate``: mask a model, run it with its secrets, see what masks give away and cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from touchstone.errors import InputError
from touchstone.language.options import Json

__all__ = ["app"]

app = typer.Typer(
    name="obfuscate",
    help="Mask a model's weights for a device that is not trusted, and say what that does not stop.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Rank = Annotated[int, typer.Option(min=1, help="Of a pair of factors.")]
PoolSize = Annotated[int, typer.Option("--pool", min=1, help="Factors that layers of a width share.")]


@app.command()
def protect(
    model: Annotated[str, typer.Argument(help="A folder, a .gguf file, a Hugging Face id, or 'default'.")],
    out: Annotated[Path, typer.Option("--out", help="Folder: ree.safetensors, config.json, secrets.safetensors.")],
    rank: Rank = 24,
    pool: PoolSize = 4,
    terms: Annotated[int, typer.Option(min=1, help="Pairs that a layer combines.")] = 2,
    mask: Annotated[str, typer.Option(help="lowrank (the paper's) or fwht (full rank, nothing to keep).")] = "lowrank",
    policy: Annotated[str, typer.Option(help="full, or weights_only for tests.")] = "full",
    targets: Annotated[str, typer.Option(help="all-linear, or a regular expression of layer names.")] = "all-linear",
    seed: Annotated[int | None, typer.Option(help="Of the key, for tests; a new secret key if left out.")] = None,
    as_json: Json = False,
) -> None:
    """Mask a model; secrets go into a file of their own that only you may read."""
    from touchstone.files import write_text
    from touchstone.language import LanguageModel
    from touchstone.language.loro.protection import LoROConfig
    from touchstone.language.loro.protection import protect as mask_model
    from touchstone.language.loro.threat import threat_report
    from touchstone.progress import Bars

    if out.exists():
        raise InputError(f"--out {out}: already exists")
    bars = Bars()
    loaded = LanguageModel.load(model, device="cpu", progress=bars.say)
    bars.say("masking weights")
    config = LoROConfig(
        rank=rank, pool=pool, terms=terms, mask=mask, policy=policy, targets=targets, seed=seed,  # type: ignore[arg-type]
    )  # fmt: skip
    hidden = mask_model(loaded.module, config)
    hidden.save(out)
    report = threat_report(hidden)
    write_text(out / "THREATS.md", report)
    if as_json:
        typer.echo(json.dumps(hidden.summary() | {"out": str(out)}, indent=2))
        return
    typer.echo(report)
    typer.echo(f"saved {out}; keep secrets.safetensors apart from the rest")


@app.command()
def run(
    folder: Annotated[Path, typer.Argument(help="Folder of `protect`.")],
    prompts: Annotated[list[str], typer.Argument(help="What to ask.")],
    model: Annotated[str, typer.Option("--model", help="The model that was masked, for its tokenizer and shapes.")],
    enclave: Annotated[bool, typer.Option("--enclave/--in-process", help="Secrets in another process.")] = True,
    alone: Annotated[bool, typer.Option("--alone", help="Without the secrets: what a thief would run.")] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length of a reply.")] = 48,
    as_json: Json = False,
) -> None:
    """Ask a masked model, its secrets behind a pipe; counts the bytes that cross it."""
    from touchstone.language import LanguageModel
    from touchstone.language.loro.enclave import Subprocess
    from touchstone.language.loro.protection import Protected

    loaded = LanguageModel.load(model, device="cpu")
    hidden = Protected.load(folder, loaded.module)
    masked = LanguageModel(hidden.ree, loaded.tokenizer, source=f"{loaded.source}, masked")
    crossed: dict[str, int] = {}
    if alone:
        with hidden.ree_only():
            replies = masked.generate(prompts, max_new_tokens=max_new_tokens)
    elif enclave:
        with Subprocess(hidden.tee) as other, hidden.through(other):
            replies = masked.generate(prompts, max_new_tokens=max_new_tokens)
        crossed = {"sent": other.sent, "received": other.received}
    else:
        replies = masked.generate(prompts, max_new_tokens=max_new_tokens)
    if as_json:
        typer.echo(json.dumps({"replies": replies, "bytes": crossed}, indent=2, ensure_ascii=False))
        return
    for reply in replies:
        typer.echo(reply)
    if crossed:
        typer.echo(f"{crossed['sent']:,} bytes into the enclave, {crossed['received']:,} out of it", err=True)


@app.command()
def audit(
    folder: Annotated[Path, typer.Argument(help="Folder of `protect`.")],
    model: Annotated[str, typer.Option("--model", help="The private model that was masked.")],
    public: Annotated[str, typer.Option("--public", help="The public model that it was tuned from.")],
    most: Annotated[int, typer.Option(min=1, help="Layers to attack, spread over the model.")] = 8,
    as_json: Json = False,
) -> None:
    """Attack your own masked model by rank: how much of each private update is found."""
    import numpy as np

    from touchstone.language import LanguageModel
    from touchstone.language.loro.protection import Protected
    from touchstone.language.loro.spectrum import predicted_error, spectral_attack

    private, known = (LanguageModel.load(name, device="cpu") for name in (model, public))
    hidden = Protected.load(folder, private.module)
    rank = hidden.config.rank * hidden.config.terms
    places = np.linspace(0, len(hidden.layers) - 1, min(most, len(hidden.layers))).round().astype(int)
    rows: list[dict[str, Any]] = []
    for layer in (hidden.layers[int(i)] for i in places):
        parts = [m.get_submodule(layer.name) for m in (hidden.ree, private.module, known.module)]
        seen, own, base = (layer.weight(part).detach().numpy().astype(np.float64) for part in parts)
        update = own - base
        if not update.any():
            raise InputError(f"--public: {layer.name} is that of the private model; there is no update to find")
        found, _ = spectral_attack(seen, base, min(rank, layer.n, layer.m))
        error = float(np.linalg.norm(found - own) / np.linalg.norm(update))
        rows.append(
            {
                "layer": layer.name,
                "error": error,
                "predicted": predicted_error(layer.n, layer.m, min(rank, layer.n, layer.m)),
            }
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo(f"{row['layer']}  error {row['error']:.3f}, predicted {row['predicted']:.3f}")
    typer.echo("relative error of the update that an attacker finds: 0 all of it, 1 and more nothing")


@app.command()
def rank(
    n: Annotated[int, typer.Argument(min=1, help="Width of a layer's input.")],
    m: Annotated[int, typer.Argument(min=1, help="Width of its output.")],
    error: Annotated[
        float, typer.Option(help="Relative error that the attacker shall not come below, in (0, 1].")
    ] = 0.9,
    as_json: Json = False,
) -> None:
    """The smallest rank of a mask that keeps an attacker's error up, and what it costs."""
    from touchstone.language.loro.spectrum import rank_for

    needed = rank_for(n, m, error)
    record = {"rank": needed, "share_of_full": needed / min(n, m), "relative_flops": needed * (1 / n + 1 / m)}
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    typer.echo(
        f"rank {needed} of {min(n, m)}; correction {record['relative_flops']:.2f} times the layer's own products"
    )
    if record["relative_flops"] >= 1:
        typer.echo("low rank cannot give that at a saving; see --mask fwht")
