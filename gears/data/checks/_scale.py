"""Checks of expression values, and their scale: counts, normalised, log1p, ..., recognised by several signs.

Counts of one cell are whole multiples of one number, however they were normalised and whichever genes were kept. So the
transformation that was applied is the one whose inverse makes the values of each cell whole multiples again (of a part
of the lowest, which may be 2 counts or more). Where counts were changed otherwise (corrected, imputed), the library
sizes decide: they are equal after the right inverse, if all genes are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.core._findings import Finding, check
from gears.core._messages import count, shorten
from gears.data.reading._matrix import as_csr, share_of_integers
from gears.files._mapped import pieces

LOG_MAXIMUM = 25.0
"""log1p of any sensible normalised count lies far below this."""
MOSTLY_COUNTS = 0.5
"""Share of whole numbers among the values above which they are counts: a logarithm is hardly ever whole."""

N_SAMPLE = 200
"""Cells that are looked at, evenly spaced."""
MIN_RATIOS, MIN_INFORMATIVE = 3, 5
"""Distinct multiples that a cell must have to distinguish scales, and cells that must have them."""
LARGEST_RATIO = 200.0
"""Larger multiples are no whole numbers within the tolerance where values are float32."""
SAME = 1e-4
"""Relative gap below which two values are one: float32 after an inverse logarithm gives about 1e-6."""
TOLERANCE, MIN_SHARE = 0.02, 0.9
"""Distance from a whole number, and share of the multiples within it: by chance it is 4 %."""
MOST_VARIED = 1e-3
"""Relative range of library sizes that counts as equal: float32 gives about 1e-6."""

SAME_GENES = 20
"""Expressed genes from which two cells do not agree in all values by chance."""

COUNTS, LOG1P, SCALED = "counts", "log1p", "scaled"
MIXED = "mixed"
"""Cells of several scales, as of batches that were normalised in different ways."""
TO_LINEAR: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "normalised": np.asarray,
    "sqrt": np.square,  # whole numbers are whole multiples here, too: after "normalised", which wins when both fit
    LOG1P: lambda values: np.expm1(np.minimum(values, LOG_MAXIMUM)),
    "log2": lambda values: np.expm1(np.minimum(values, LOG_MAXIMUM) * np.log(2)),
    "log10": lambda values: np.expm1(np.minimum(values, LOG_MAXIMUM) * np.log(10)),
    "log1p-twice": lambda values: np.expm1(np.expm1(np.minimum(values, 6.0))),
}
"""Inverse of each scale of normalised counts."""
SCALES = (COUNTS, "fractions", *TO_LINEAR, SCALED)

WRONG = {
    "fractions": ("fractions of each cell's counts", "multiply by 1e4 and apply scanpy.pp.log1p on a copy"),
    "normalised": ("normalised values without logarithm", "apply scanpy.pp.log1p on a copy"),
    "sqrt": ("a root of counts", "give counts with normalize=True, or log-normalised values"),
    "log2": ("log2 of normalised counts", "multiply by 0.6931 (ln 2) on a copy"),
    "log10": ("log10 of normalised counts", "multiply by 2.3026 (ln 10) on a copy"),
    "log1p-twice": ("values that were logged twice", "apply numpy.expm1 once on a copy"),
}
"""What values of another scale are, and how they become log1p of normalised counts."""


def detect_scale(matrix: sparse.csr_matrix) -> str | None:
    """Scale of finite values, (N, G) CSR: a name of :data:`SCALES`, or "mixed"; None where no sign decides."""
    values = matrix.data
    if not len(values):
        return None
    ends = np.array([(piece.min(), piece.max()) for piece in pieces(values)])
    if ends[:, 0].min() < 0:
        return SCALED
    cells = _sample(matrix)
    if _are_roots(np.concatenate(cells)):
        return "sqrt"
    distances = _distances(cells)
    if len(_scales_of_cells(distances)) > 1:
        return MIXED
    if share_of_integers(values) > MOSTLY_COUNTS:
        return COUNTS
    scale = _by_multiples(distances) or _by_library_sizes(cells)
    if scale == "normalised" or (scale is None and ends[:, 1].max() > LOG_MAXIMUM):
        return "fractions" if max(cell.sum() for cell in cells) < 1.001 else "normalised"
    return scale


def _sample(matrix: sparse.csr_matrix) -> list[np.ndarray]:
    """Values above 0 of some cells that have any."""
    numbers = np.flatnonzero(np.diff(matrix.indptr))
    sampled = numbers[np.unique(np.linspace(0, len(numbers) - 1, N_SAMPLE).astype(np.int64))]
    rows = (matrix.data[matrix.indptr[i] : matrix.indptr[i + 1]].astype(np.float64) for i in sampled)
    return [row[row > 0] for row in rows]


def _are_roots(values: np.ndarray) -> bool:
    """Whether values are roots of whole numbers and not whole numbers all: most of them may be 1 in shallow screens."""
    odd = values[np.abs(values - np.rint(values)) > SAME]
    return len(odd) > 0 and odd.min() > 1 and bool((np.abs(odd**2 - np.rint(odd**2)) < TOLERANCE).all())


def _distances(cells: list[np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Distances of each cell's multiples from whole numbers, by scale; without scales that leave it too few."""
    inverse = TO_LINEAR.items()
    return [
        {name: far for name, to_linear in inverse if (far := _from_whole(to_linear(cell))) is not None}
        for cell in cells
    ]


def _by_multiples(distances: list[dict[str, np.ndarray]]) -> str | None:
    """The scale whose inverse makes each cell's values whole multiples of one number."""
    scores = {}
    for name in TO_LINEAR:
        far = [of_cell[name] for of_cell in distances if name in of_cell]
        enough = len(far) >= MIN_INFORMATIVE
        if enough and np.mean([(distance < TOLERANCE).mean() for distance in far]) >= MIN_SHARE:
            scores[name] = float(np.median(np.concatenate(far)))
    return min(scores, key=scores.__getitem__, default=None)


def _scales_of_cells(distances: list[dict[str, np.ndarray]]) -> Counter[str]:
    """Scales that enough of the cells have, each by its own multiples, and how many; counts are "normalised"."""
    scales: Counter[str] = Counter()
    for of_cell in distances:
        fitting = {n: np.median(far) for n, far in of_cell.items() if (far < TOLERANCE).mean() >= MIN_SHARE}
        if fitting:
            scales[min(fitting, key=fitting.__getitem__)] += 1
    return Counter({name: n for name, n in scales.items() if n >= MIN_INFORMATIVE})


def _from_whole(linear: np.ndarray) -> np.ndarray | None:
    """Distance of a cell's multiples of its unit (what one count became) from whole numbers; None for too few."""
    ordered = np.sort(linear)
    distinct = ordered[np.append(True, ordered[1:] > ordered[:-1])]
    gaps = distinct[1:] - distinct[:-1]
    gaps = gaps[gaps > SAME * distinct[1:]]
    units = [distinct[0] / divisor for divisor in (1, 2, 3)] + ([gaps.min()] if len(gaps) else [])
    ratio_UD = distinct / np.array(units)[:, None]  # all units at once: a screen has 200 cells x 6 scales
    is_used_UD = (ratio_UD > 1.02) & (ratio_UD < LARGEST_RATIO)
    ratio_UD = np.rint(1000 * ratio_UD) / 1000
    # each once: they ascend
    is_used_UD[:, 1:] &= (ratio_UD[:, 1:] > ratio_UD[:, :-1]) | ~is_used_UD[:, :-1]
    distance_UD = np.abs(ratio_UD - np.rint(ratio_UD))
    best, least = None, np.inf
    for distance_D, is_used_D in zip(distance_UD, is_used_UD, strict=True):
        distance = distance_D[is_used_D]
        if len(distance) >= MIN_RATIOS and (mean := np.add.reduce(distance) / len(distance)) < least:
            best, least = distance, mean
    return best


def _by_library_sizes(cells: list[np.ndarray]) -> str | None:
    """The scale after whose inverse all cells have the same sum; None where cells are alike, so that several fit."""
    if len(cells) < MIN_INFORMATIVE:
        return None
    fitting = []
    for name, to_linear in TO_LINEAR.items():
        sums = np.array([to_linear(cell).sum() for cell in cells])
        if np.ptp(sums) < MOST_VARIED * sums.max():
            fitting.append(name)
    return fitting[0] if len(fitting) == 1 else None


def library_size(matrix: sparse.csr_matrix) -> float | None:
    """Sum of a cell before log1p, where all cells looked at have the same; None where they differ."""
    sums = np.array([TO_LINEAR[LOG1P](cell).sum() for cell in _sample(matrix)])
    return float(np.median(sums)) if len(sums) and np.ptp(sums) < MOST_VARIED * sums.max() else None


def scale_findings(
    matrix: sparse.csr_matrix, scale: str | None, layer: str | None, elsewhere: Callable[[], str], *, normalize: bool
) -> list[Finding]:
    """Values of another scale than the options say: counts with `normalize`, log1p of normalised counts without.

    `elsewhere` names the places that hold what is needed, "" for none. Scaled values of a `layer` that was named are
    used; those of X (None) are an error where another place holds what is needed.
    """
    if scale in ((COUNTS,) if normalize else (LOG1P, None)):
        return []
    place = "X" if layer is None else f"layers[{layer!r}]"
    if scale == MIXED:
        scales = _scales_of_cells(_distances(_sample(matrix)))
        shown = ", ".join(f"{n} {name}" for name, n in scales.most_common())
        what = f"{place} holds cells of {len(scales)} scales (of the cells looked at: {shown})"
        remedy = "bring all of them to log1p of normalised counts before they are put together"
        remedy += f"; scale={LOG1P!r} uses them unchanged" * (not normalize)
        return [Finding("mixed-scales", what, remedy, sum(scales.values()))]
    values, better = matrix.data, elsewhere()
    low, high = (float(end(end(piece) for piece in pieces(values))) for end in (min, max))
    n, also = len(values), f", or {better}" if better else ""
    if normalize:
        what = f"normalize=True needs counts, but {place} does not hold whole non-negative numbers"
        remedy = better or "pass the layer that holds counts, or leave normalize out"
        return [Finding("no-counts", what, remedy)]
    if scale == COUNTS:
        share = share_of_integers(values)
        shown = "whole numbers only" if share == 1 else f"mostly whole numbers ({share:.0%})"
        what = f"{place} holds {shown} (up to {high:g}): these look like raw counts, log-normalised values are needed"
        remedy = f"pass normalize=True (1e4 counts per cell, then log1p, on a copy){also}"
        return check("counts", [f"{high:g}"], what, remedy, n=int(share * n))
    if scale in WRONG:
        described, remedy = WRONG[scale]
        what = f"{place} holds {described} (up to {high:g}): log1p of normalised counts is needed"
        remedy += f"{also}; scale={LOG1P!r} says that they are log1p, scale={scale!r} uses them unchanged"
        return check("other-scale", [f"{high:g}"], what, remedy, n=n)
    negative = int((values < 0).sum())
    what = f"{place} has negative values (down to {low:g}), such as z-scores or residuals"
    if better and layer is None:
        remedy = f"{better}, or scale={SCALED!r} to use the scaled values of {place}"
        return check("scaled-beside-others", [f"{low:g}"], what, remedy, n=negative)
    better = better or "give log-normalised values if there are any"
    remedy = f"{better}; negative predictions are not set to 0 (clip=True does)"
    return check("negative-values", [f"{low:g}"], f"{what}; they are used unchanged", remedy, "warning", n=negative)


def shared_totals_findings(values: Any, is_gene_G: np.ndarray) -> list[Finding]:
    """A warning about log1p values whose totals are equal over all features, of which some are no genes.

    Genes of a cell with many guides are then too low. Looked at in some cells of a matrix of any form.
    """
    rows = np.unique(np.linspace(0, values.shape[0] - 1, N_SAMPLE).astype(np.int64))
    try:
        linear = as_csr(values[rows]).astype(np.float64)
    except (TypeError, ValueError):  # reported where all values are read
        return []
    linear.data = TO_LINEAR[LOG1P](linear.data)
    of_all, of_genes = (np.asarray(part.sum(axis=1)).ravel() for part in (linear, linear[:, is_gene_G]))
    of_all, of_genes = of_all[of_all > 0], of_genes[of_all > 0]
    is_equal = [np.ptp(sums) < MOST_VARIED * sums.max() for sums in (of_all, of_genes) if len(sums)]
    what = "values were normalised over genes and excluded features together: totals of the genes alone differ"
    remedy = "pass normalize=True with counts, or normalise the genes alone"
    return check("shared-totals", of_all if is_equal == [True, False] else [], what, remedy, "warning")


def other_places(layers: Mapping[str, Any], raw: Any, used: str | None) -> str:
    """Layers and ``adata.raw`` with log-normalised values or counts, as remedies; "" where there are none.

    A layer that was not read, or that holds no sign, is judged by its name.
    """
    places = {name: values for name, values in layers.items() if name != used}
    if raw is not None and used != "raw" and "raw" not in places:
        places["raw"] = raw
    remedies = []
    for name, values in places.items():
        by_name = COUNTS if "count" in name.lower() else LOG1P if "log" in name.lower() else None
        scale = _scale_of(values) or by_name
        what = "adata.raw" if values is raw else f"layers[{name!r}]"
        if scale in (LOG1P, COUNTS):
            held = f"{what} holds " + ("counts" if scale == COUNTS else "log-normalised values")
            remedies.append((scale, f"pass layer={name!r}{' with normalize=True' * (scale == COUNTS)} ({held})"))
    return " or ".join(remedy for _, remedy in sorted(remedies, key=lambda one: one[0] != LOG1P))


def _scale_of(values: Any) -> str | None:
    """Scale of a matrix of any form, looked at in some cells; of CSR ones in cells that have values."""
    is_csr = sparse.issparse(values) and values.format == "csr"
    cells = np.flatnonzero(np.diff(values.indptr)) if is_csr else np.arange(values.shape[0])
    if not len(cells):
        return None
    rows = cells[np.unique(np.linspace(0, len(cells) - 1, 2 * N_SAMPLE).astype(np.int64))]
    try:
        return detect_scale(as_csr(values[rows]))
    except (TypeError, ValueError):  # no numbers, or stored by columns in a file
        return None


def size_findings(n_cells: int, n_genes: int) -> list[Finding]:
    sizes, remedy = {"cells": n_cells, "genes": n_genes}, "check how the file was written or filtered"
    return [Finding(f"no-{what}", f"there are no {what}", remedy) for what, n in sizes.items() if n == 0]


def value_findings(matrix: sparse.csr_matrix, *, layer: str | None, layers: Sequence[str]) -> list[Finding]:
    """Values that are not finite, or nothing but zeros."""
    values = matrix.data
    place = f"layers[{layer!r}]" if layer else "X"
    bad = sum(int(np.count_nonzero(~np.isfinite(piece))) for piece in pieces(values))
    if bad:
        what = f"{place} holds {count(bad, 'NaN or infinite value')}"
        return [Finding("not-finite", what, "replace them, or drop those cells or genes", bad)]
    if not len(values):
        remedy = "pass the layer that holds the values" if layers else "check how the file was written"
        remedy += f" (layers: {shorten(layers) or 'none'})"
        return [Finding("all-zero", f"{place} holds nothing but zeros", remedy)]
    return []


def repeated_cell_findings(matrix: sparse.csr_matrix, names: pd.Index) -> list[Finding]:
    """Names of cells that occur twice, and cells with the same values in many genes."""
    again = names[names.duplicated()]
    what = f"{count(len(again), 'cell')} with the name of another cell ({shorten(again.unique(), 3)})"
    remedy = "drop them if they are the same cells, or call adata.obs_names_make_unique() on a copy"
    findings = check("repeated-cell-name", list(again), what, remedy, "warning")
    weights_G = np.random.default_rng(0).uniform(1, 2, matrix.shape[1])
    sums_N = matrix @ weights_G
    rows = np.flatnonzero(np.diff(matrix.indptr) >= SAME_GENES)
    same = list(names[rows[pd.Series(sums_N[rows]).duplicated().to_numpy()]])
    what = f"{count(len(same), 'cell')} with exactly the values of another cell ({shorten(same, 3)})"
    remedy = "drop them if they are there twice: they count twice"
    return findings + check("repeated-cell", same, what, remedy, "warning")
