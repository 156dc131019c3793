"""Options that verbs of the room have in common, each with one wording."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Device", "Dtype", "Json", "Model", "Seed"]

Model = Annotated[str, typer.Option("--model", help="A folder, a .gguf file, a Hugging Face id or 'default'.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, …")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Seed = Annotated[int, typer.Option(help="Every random number follows from it.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout and nothing else.")]
