"""The history of a run as files, rewritten each time, so that a resumed run repeats no line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from gears.files.formats import write_text
from gears.training.loggers.registry import Record, flat

JSONL, CSV = "metrics.jsonl", "metrics.csv"


def write_history(folder: Path, history: Sequence[Record]) -> None:
    """``metrics.jsonl`` (a record per line) and ``metrics.csv`` (a row per epoch, empty where not evaluated)."""
    write_text(folder / JSONL, "\n".join(json.dumps(record) for record in history) + "\n")
    write_text(folder / CSV, as_csv(history))


def as_csv(history: Sequence[Record]) -> str:
    """A table with a column per number; groups as ``seconds/total``.

    Examples
    --------
    >>> print(as_csv([{"epoch": 1, "seconds": {"total": 2.5}}, {"epoch": 2, "val_mse": 0.5}]).rstrip())
    epoch,seconds/total,val_mse
    1,2.5,
    2,,0.5
    """
    rows = [flat(record) for record in history]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()
