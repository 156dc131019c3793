"""Evidence: the one result type that checks, remedies and studies return and every view renders.

An Evidence holds findings (a statement, what was measured, against what, with which verdict), tables and
figures. On disk it is a folder: ``evidence.json``, ``tables/*.csv`` and ``figures/*.png``; the layout of
``evidence.json`` is the schema named in :data:`SCHEMA`.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.files import written_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

__all__ = ["SCHEMA", "Evidence", "Figure", "Finding", "Limit", "Measurement", "Scale", "Table", "Verdict", "finite"]

SCHEMA = "touchstone.evidence/1"
Verdict = Literal["holds", "fails", "undecided"]
Kind = Literal["check", "remedy", "study"]
Scale = Literal["smoke", "cpu", "gpu"]
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Measurement:
    """One measured number.

    Attributes
    ----------
    name : what was measured, in words.
    value : the number; NaN when it could not be measured (``null`` in JSON).
    unit : its unit, empty for a rate or a ratio.
    low, high : ends of the 95 % interval, ``None`` where the number is not an estimate.
    n : number of independent observations behind it.
    """

    name: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    n: int | None = None

    @classmethod
    def rate(cls, name: str, hits: int, n: int) -> Measurement:
        """A proportion with its Wilson score interval (Wilson 1927)."""
        if not 0 <= hits <= n or n < 1:
            raise InputError(f"rate {name!r}: expected 0 <= hits <= n and n >= 1, got hits={hits}, n={n}")
        z = 1.959963984540054
        p, z2n = hits / n, z * z / n
        middle = (p + z2n / 2) / (1 + z2n)
        half = z * math.sqrt(p * (1 - p) / n + z2n / (4 * n)) / (1 + z2n)
        # At 0 and n the formula's end is 0 and 1 up to rounding.
        low = 0.0 if hits == 0 else max(0.0, middle - half)
        high = 1.0 if hits == n else min(1.0, middle + half)
        return cls(name, p, low=low, high=high, n=n)

    @classmethod
    def mean(cls, name: str, values: Sequence[float] | np.ndarray, unit: str = "") -> Measurement:
        """A mean with its Student-t interval; no interval for a single value."""
        sample = np.asarray(values, dtype=float).ravel()
        if sample.size == 0:
            raise InputError(f"mean {name!r}: expected at least one value, got none")
        centre = float(sample.mean())
        if sample.size == 1:
            return cls(name, centre, unit, n=1)
        from scipy.stats import t

        half = float(t.ppf(0.975, sample.size - 1) * sample.std(ddof=1) / math.sqrt(sample.size))
        return cls(name, centre, unit, centre - half, centre + half, int(sample.size))


@dataclass(frozen=True)
class Limit:
    """A bound on a measured value, such as ``"<= 0.10"``."""

    relation: Literal["<=", "<", ">=", ">"]
    bound: float

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Read ``"<= 0.10"``; raises :class:`InputError` on anything else."""
        match = re.fullmatch(r"\s*(<=|<|>=|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*", str(text))
        if match is None:
            raise InputError(f'limit {text!r}: expected a relation and a number, such as "<= 0.10" or "> 5"')
        return cls(match[1], float(match[2]))  # type: ignore[arg-type]

    def allows(self, value: float) -> bool:
        """Whether ``value`` is inside the limit; NaN never is."""
        match self.relation:
            case "<=":
                return value <= self.bound
            case "<":
                return value < self.bound
            case ">=":
                return value >= self.bound
            case _:
                return value > self.bound

    def judge(self, measured: Measurement) -> Verdict:
        """``fails`` if the value breaks the limit, ``undecided`` if only its interval does, else ``holds``."""
        if not self.allows(measured.value):
            return "fails"
        ends = [end for end in (measured.low, measured.high) if end is not None]
        return "holds" if all(self.allows(end) for end in ends) else "undecided"

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:g}"


@dataclass(frozen=True)
class Finding:
    """One claim with what was measured for it.

    Attributes
    ----------
    id : short kebab-case name, stable between runs; a plan's limit ``refusal_rate`` bounds ``refusal-rate``.
    statement : the claim, one sentence.
    verdict : ``holds``, ``fails`` or ``undecided``.
    measured : the number behind it.
    against : the baseline's number from the same run, if there is one.
    limit : the bound the value was held to, as text.
    """

    id: str
    statement: str
    verdict: Verdict
    measured: Measurement
    against: Measurement | None = None
    limit: str | None = None

    @classmethod
    def held_to(
        cls, id: str, statement: str, measured: Measurement, limit: str, against: Measurement | None = None
    ) -> Finding:
        """A finding whose verdict is that of ``limit``, such as ``"<= 0.1"``, on what was measured."""
        return cls(id, statement, Limit.parse(limit).judge(measured), measured, against, limit)

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise InputError(f"finding id {self.id!r}: expected kebab case such as 'refusal-rate'")
        if self.verdict not in ("holds", "fails", "undecided"):
            raise InputError(f"finding {self.id!r}: verdict {self.verdict!r} is not holds, fails or undecided")


@dataclass(frozen=True)
class Table:
    """A named table; ``frame`` is what ``tables/<name>.csv`` holds."""

    name: str
    title: str
    frame: pd.DataFrame


@dataclass(frozen=True)
class Figure:
    """A named picture; ``png`` is what ``figures/<name>.png`` holds."""

    name: str
    title: str
    png: bytes

    @classmethod
    def draw(cls, name: str, title: str, figure: MatplotlibFigure) -> Figure:
        """Render a matplotlib figure and close it."""
        import matplotlib.pyplot as plt

        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=144, bbox_inches="tight", metadata={"Software": "touchstone"})
        plt.close(figure)
        return cls(name, title, buffer.getvalue())


@dataclass(frozen=True)
class Evidence:
    """What one check, remedy or study found.

    Attributes
    ----------
    title : headline of the report.
    method : slug of the method in the catalog.
    kind : ``check``, ``remedy`` or ``study``.
    findings, tables, figures : the content, in the order in which it should be read.
    scale : ``smoke``, ``cpu`` or ``gpu`` for a study, empty for a check.
    seed : the seed it ran with.
    environment : versions, processor, device and threads, see :func:`touchstone.environment.describe`.
    started : start in UTC, ISO 8601.
    seconds : wall time.
    """

    title: str
    method: str
    kind: Kind
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    scale: str = ""
    seed: int = 0
    environment: dict[str, Any] = field(default_factory=dict)
    started: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for what, names in (
            ("finding", [f.id for f in self.findings]),
            ("table", [t.name for t in self.tables]),
            ("figure", [f.name for f in self.figures]),
        ):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise InputError(f"evidence {self.title!r}: {what} {sorted(twice)[0]!r} stands twice")

    @property
    def verdict(self) -> Verdict:
        """``fails`` if any finding fails, else ``undecided`` if any is, else ``holds``."""
        return worst(finding.verdict for finding in self.findings)

    def finding(self, id: str) -> Finding:
        """The finding called ``id``; raises :class:`InputError` if there is none."""
        for finding in self.findings:
            if finding.id == id:
                return finding
        known = ", ".join(f.id for f in self.findings)
        raise InputError(f"finding {id!r} is not in this evidence; it has: {known}")

    def table(self, name: str) -> pd.DataFrame:
        """The table called ``name``; raises :class:`InputError` if there is none."""
        for table in self.tables:
            if table.name == name:
                return table.frame
        raise InputError(f"table {name!r} is not in this evidence; it has: {', '.join(t.name for t in self.tables)}")

    def to_dict(self) -> dict[str, Any]:
        """The content of ``evidence.json``."""
        return {
            "schema": SCHEMA,
            "title": self.title,
            "method": self.method,
            "kind": self.kind,
            "scale": self.scale,
            "seed": self.seed,
            "findings": [asdict(finding) for finding in self.findings],
            "tables": [{"name": t.name, "title": t.title, "file": f"tables/{t.name}.csv"} for t in self.tables],
            "figures": [{"name": f.name, "title": f.title, "file": f"figures/{f.name}.png"} for f in self.figures],
            "environment": self.environment,
            "started": self.started,
            "seconds": round(self.seconds, 3),
        }

    def to_json(self) -> str:
        """``evidence.json`` as text; numbers that are not finite become ``null``."""
        return json.dumps(finite(self.to_dict()), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def save(self, folder: str | Path, *, replace: bool = False) -> Path:
        """Write the folder as a whole: it is complete or it is not there.

        Parameters
        ----------
        folder : where to write.
        replace : whether a folder that is there is replaced.

        Raises
        ------
        InputError
            If the folder exists and ``replace`` is false, or it cannot be written.
        """
        with written_folder(folder, replace=replace) as new:
            (new / "evidence.json").write_text(self.to_json(), encoding="utf-8")
            for table in self.tables:
                (new / "tables").mkdir(exist_ok=True)
                table.frame.to_csv(new / "tables" / f"{table.name}.csv", index=False, lineterminator="\n")
            for figure in self.figures:
                (new / "figures").mkdir(exist_ok=True)
                (new / "figures" / f"{figure.name}.png").write_bytes(figure.png)
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Evidence:
        """Read a folder written by :meth:`save`, checking its schema.

        Raises
        ------
        InputError
            If the folder holds no evidence, or evidence of another schema or shape.
        """
        folder = Path(folder)
        path = folder / "evidence.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{folder}: no evidence.json there; expected a folder written by touchstone") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: not readable as evidence ({error})") from None
        return _read(data, folder)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """``fails`` over ``undecided`` over ``holds``."""
    seen = set(verdicts)
    return "fails" if "fails" in seen else "undecided" if "undecided" in seen else "holds"


def finite(value: Any) -> Any:
    """A value as JSON can hold it: NaN and infinities become ``None``, numpy's numbers plain ones."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _read(data: Any, folder: Path) -> Evidence:
    # Here and not above: only reading needs it, and it is slow to import.
    from pydantic import TypeAdapter, ValidationError

    path = folder / "evidence.json"
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise InputError(f"{path}: expected schema {SCHEMA!r}, found {found!r}")
    try:
        items = [_with_nan(item) for item in data["findings"]]
        files = TypeAdapter(list[dict[Literal["name", "title", "file"], str]])
        tables, figures = (files.validate_python(data[key], strict=True) for key in ("tables", "figures"))
        return Evidence(
            title=str(data["title"]),
            method=str(data["method"]),
            kind=data["kind"],
            findings=TypeAdapter(tuple[Finding, ...]).validate_json(json.dumps(items), strict=True),
            tables=tuple(Table(t["name"], t["title"], pd.read_csv(_inside(folder, t["file"]))) for t in tables),
            figures=tuple(Figure(f["name"], f["title"], _inside(folder, f["file"]).read_bytes()) for f in figures),
            scale=str(data["scale"]),
            seed=int(data["seed"]),
            environment=dict(data["environment"]),
            started=str(data["started"]),
            seconds=float(data["seconds"]),
        )
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: damaged ({place}: {first['msg']})") from None
    except (KeyError, TypeError, ValueError, OSError, pd.errors.ParserError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: damaged ({type(error).__name__}: {error})") from None


def _with_nan(item: dict[str, Any]) -> dict[str, Any]:
    """A finding as JSON holds it, with ``null`` values as NaN again."""
    numbers = {key: item[key] for key in ("measured", "against") if isinstance(item[key], dict)}
    return item | {key: n | {"value": math.nan} for key, n in numbers.items() if n["value"] is None}


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"{folder / 'evidence.json'}: file {name!r} lies outside the folder")
    return path
