"""Moment packs of lanes, plates or replicates of one screen, added up; and of several screens, as contexts of one.

Each pack is an experimental batch of its own (or several): its conditions are compared with its own control cells, as
in one pass over all cells with their source as ``batch_key``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from gears.conditions import Condition
from gears.core._messages import check_unique, shorten
from gears.data.checks._names import KnownGene
from gears.data.checks._options import ProcessingOptions
from gears.data.checks._settings import JOINT, POOLED
from gears.data.reading._open import name_of
from gears.data.screen._cells import drawn_rows
from gears.data.screen._packs import COUNTED, MOMENTS, MomentPack, read_pack
from gears.data.screen._several import CONTEXT, Alignment, align, columns_of, options_of_whole
from gears.files._paths import check_output, named
from gears.files.formats import content_hash

SAME_GENES = 20
"""Expressed genes from which two rows do not agree in all means and numbers of cells by chance."""


def merge_moments(paths: Sequence[str | Path], out: str | Path, *, overwrite: bool = False) -> Path:
    """Write the pack of several packs of one screen; nothing is written where they do not fit together.

    Parameters
    ----------
    paths
        Packs of lanes, plates or replicates, with the same genes and scale and control cells in each batch. The order
        of conditions is that of their first appearance.
    out, overwrite
        The pack to write, and whether to replace an existing file.

    Raises
    ------
    FileNotFoundError, ValueError
        If a pack is missing, damaged or of another version, has other genes, another scale or no control cells, or
        holds the cells of another one.
    """
    check_output(out, overwrite)
    if len(paths) < 2:
        msg = f"two packs or more are merged; found {len(paths)}"
        raise ValueError(msg)
    files = [named(Path(path)) for path in paths]
    check_unique(map(str, files), "packs")
    names = [name_of(file).removesuffix(".moments") for file in files]
    # where two files have one name, their paths tell them apart
    unique = [name if names.count(name) == 1 else str(file) for name, file in zip(names, files, strict=True)]
    packs = {name: read_pack(path) for name, path in zip(unique, paths, strict=True)}
    _check_alike(packs)
    return _merged(packs).write(out, overwrite=overwrite)


def packs_as_contexts(
    packs: Mapping[str, MomentPack], options: ProcessingOptions, is_gene: KnownGene | None, genes: str
) -> MomentPack:
    """Put packs together as contexts of one screen: rows unchanged, over the shared genes or over all.

    ValueError where they have no gene in common, are of different scales, or two hold the same cells.
    """
    measured = {name: (pack.tables["gene_names"], pack.tables["gene_ids"]) for name, pack in packs.items()}
    alignment = align(measured, is_gene, genes)
    whole = options_of_whole(options, next(iter(packs.values())).manifest["scale"])
    contexts = {name: _as_context(pack, name, alignment) for name, pack in packs.items()}
    _check_alike(contexts)
    pack = _merged(contexts)
    hashes = {name: single.manifest["content_hash"] for name, single in packs.items()}
    layout = {"style": "gears", "condition_key": "condition", "cell_type_key": CONTEXT, "gene_key": "gene_name"}
    pack.manifest.update(
        content_hash=content_hash("contexts", hashes, genes, alignment.var["gene_name"].tolist()),
        parameters=whole.to_dict(),
        layout=pack.manifest["layout"] | layout,
    )
    if (is_measured := alignment.is_measured) is not None:
        pack.tables["unmeasured"] = {name: np.flatnonzero(~known).tolist() for name, known in is_measured.items()}
    return pack


def _as_context(pack: MomentPack, name: str, alignment: Alignment) -> MomentPack:
    """A pack whose conditions are those of a context, with the genes of the whole; those it lacks are all 0."""
    columns, renamed = alignment.columns[name], alignment.renamed[name]
    is_there, at = columns >= 0, columns.clip(0)

    def own(gene: str) -> str:
        return renamed.get(gene, gene)

    conditions = [Condition(tuple(sorted(map(own, one.genes))), context=name, kind=one.kind) for one in pack.conditions]
    labels = []
    for label, number in zip(pack.tables["labels"], pack.tables["label_condition"], strict=True):
        plain = label.removesuffix(pack.conditions[number].suffix)
        labels.append("+".join(map(own, plain.split("+"))) + conditions[number].suffix)
    tables = pack.tables | {
        "gene_names": alignment.var["gene_name"].tolist(),
        "gene_ids": alignment.var.index.tolist(),
        "labels": labels,
        "conditions": [[list(one.genes), one.context, one.kind] for one in conditions],
        "condition_names": [f"{POOLED}_{shown.split('_', 1)[-1]}" for shown in pack.tables["condition_names"]],
        "batches": [JOINT.join(filter(None, (batch, name))) for batch in pack.tables["batches"]],
    }
    shape = pack.manifest["shape"] | {"genes": len(columns)}
    return replace(
        pack,
        manifest=pack.manifest | {"shape": shape, "cell_types": [name]},
        tables=tables,
        layers={layer: values[:, at] * is_there for layer, values in pack.layers.items()},
        halves=pack.halves[..., at] * is_there,
        controls=columns_of(pack.controls, columns),
    )


def _check_alike(packs: dict[str, MomentPack]) -> None:
    """Raise ValueError where packs do not belong to one screen, or share cells."""
    (first_name, first), *others = packs.items()
    for name, pack in others:
        for what in ("gene_ids", "gene_names"):
            genes, expected = pack.tables[what], first.tables[what]
            if genes != expected:
                same = set(genes) == set(expected)
                differing = sorted(set(genes) ^ set(expected))
                detail = "in another order" if same else f"others ({shorten(differing, 3)})"
                msg = (
                    f"{name} and {first_name} do not measure the same genes: {detail}; prepare both from the same genes"
                )
                raise ValueError(msg)
        for what in ("scale", "has_negative", "differential_expression"):
            if pack.manifest.get(what) != first.manifest.get(what):
                both = f"{pack.manifest.get(what)!r} in {name}, {first.manifest.get(what)!r} in {first_name}"
                msg = f"packs are merged that were prepared alike; {what.replace('_', ' ')} is {both}"
                raise ValueError(msg)
        if _divided(pack) != _divided(first):
            msg = f"only some of {first_name} and {name} name contexts or types of perturbation; prepare both alike"
            raise ValueError(msg)
    seen: dict[bytes, str] = {}
    for name, pack in packs.items():
        control = np.array([one.is_control for one in pack.conditions])[pack.row_condition]
        without = set(pack.row_batch.tolist()) - set(pack.row_batch[control].tolist())
        if without:
            batches = [pack.tables["batches"][batch] or name for batch in sorted(without)]
            msg = f"{name} has no control cells in {shorten(batches)}; each batch is compared with its own"
            raise ValueError(msg)
        for row, (counts, mean) in enumerate(zip(pack.layers["nonzero"], pack.layers["mean"], strict=True)):
            key = counts.tobytes() + mean.astype(np.float32).tobytes()  # whatever rounding made of the mean
            if np.count_nonzero(counts) >= SAME_GENES and seen.setdefault(key, name) != name:
                where = pack.conditions[pack.row_condition[row]]
                msg = f"{name} and {seen[key]} hold the same cells ({where}); give each once"
                raise ValueError(msg)


def _divided(pack: MomentPack) -> tuple[bool, bool]:
    perturbed = [one for one in pack.conditions if not one.is_control]
    return any(one.context for one in perturbed), any(one.kind for one in perturbed)


def _merged(packs: dict[str, MomentPack]) -> MomentPack:
    """The sum of packs that fit together."""
    held = list(packs.values())
    first, n_genes = held[0], len(held[0].tables["gene_ids"])
    conditions: dict[Any, int] = {}
    labels: dict[str, list[Any]] = {}  # condition, published name, cells
    batch_names: list[tuple[str, int, int]] = []
    own_names = [batch for pack in held for batch in pack.tables["batches"]]
    ids: list[np.ndarray] = []  # of each pack, the number of each of its conditions
    for number, (name, pack) in enumerate(packs.items()):
        ids.append(np.array([conditions.setdefault(one, len(conditions)) for one in pack.conditions]))
        columns = (pack.tables[key] for key in ("labels", "label_condition", "condition_names", "label_cells"))
        for label, own_id, shown, n in zip(*columns, strict=True):
            entry = labels.setdefault(label, [int(ids[number][own_id]), shown, 0])
            entry[2] += n
        for batch, text in enumerate(pack.tables["batches"]):
            unique = text and own_names.count(text) == 1
            batch_names.append((text if unique else JOINT.join(filter(None, (text, name))), number, batch))
    order = sorted(batch_names)
    chunks = []  # pack, its rows and their conditions, batch after batch
    for _, number, own_batch in order:
        pack = held[number]
        rows = np.flatnonzero(pack.row_batch == own_batch)
        condition = ids[number][pack.row_condition[rows]]
        by_condition = np.argsort(condition)
        chunks.append((pack, rows[by_condition], condition[by_condition]))
    layers = {
        name: np.concatenate([pack.layers[name][rows] for pack, rows, _ in chunks]) for name in (*MOMENTS, *COUNTED)
    }
    halves, halves_n = _merged_halves(held, ids, len(conditions), n_genes)
    controls, controls_condition = _merged_controls(held, ids, n_genes)
    tables = first.tables | {
        "labels": list(labels),
        "label_condition": [entry[0] for entry in labels.values()],
        "condition_names": [entry[1] for entry in labels.values()],
        "label_cells": [entry[2] for entry in labels.values()],
        "conditions": [[list(one.genes), one.context, one.kind] for one in conditions],
        "batches": [text for text, _, _ in order],
    }
    n = np.concatenate([pack.n[rows] for pack, rows, _ in chunks]).astype(np.int64)
    sizes = {"cells": int(n.sum()), "conditions": len(conditions), "labels": len(labels)}
    manifest = first.manifest | {
        "content_hash": content_hash("merged", [pack.manifest["content_hash"] for pack in held]),
        "merged": {name: pack.manifest["content_hash"] for name, pack in packs.items()},
        "spelling": {
            "controls": list(dict.fromkeys(one for pack in held for one in pack.manifest["spelling"]["controls"])),
            "sep": first.manifest["spelling"]["sep"],
            "labels": {own: label for pack in held for own, label in pack.manifest["spelling"]["labels"].items()},
        },
        "cell_types": sorted({one for pack in held for one in pack.manifest["cell_types"]}),
        "dropped": [one for pack in held for one in pack.manifest["dropped"]],
        "shape": first.manifest["shape"] | sizes,
    }
    row_condition = np.concatenate([condition for _, _, condition in chunks]).astype(np.int64)
    row_batch = np.repeat(np.arange(len(chunks)), [len(rows) for _, rows, _ in chunks])
    return MomentPack(
        manifest, tables, row_condition, row_batch, n, layers, halves, halves_n, controls, controls_condition
    )


def _merged_halves(
    packs: list[MomentPack], ids: list[np.ndarray], n_conditions: int, n_genes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Halves of conditions in several packs: the halves there together."""
    repeats = packs[0].halves.shape[0]
    mean, n_2C = np.zeros((repeats, 2, n_conditions, n_genes)), np.zeros((2, n_conditions), dtype=np.int64)
    for at, pack in zip(ids, packs, strict=True):
        total = n_2C[:, at] + pack.halves_n
        share = pack.halves_n / np.maximum(total, 1)
        step = np.nan_to_num(pack.halves) - mean[:, :, at]
        # the first pack of a condition, unchanged to the last bit
        mean[:, :, at] = np.where(
            (n_2C[:, at] == 0)[..., None], np.nan_to_num(pack.halves), mean[:, :, at] + step * share[..., None]
        )
        n_2C[:, at] = total
    mean[:, n_2C == 0] = np.nan
    return mean, n_2C


def _merged_controls(
    packs: list[MomentPack], ids: list[np.ndarray], n_genes: int
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """A draw of the control cells of all packs, context after context."""
    cells = sparse.vstack([pack.controls for pack in packs], format="csr")
    condition = np.concatenate([own[pack.controls_condition] for own, pack in zip(ids, packs, strict=True)])
    groups = drawn_rows([np.flatnonzero(condition == one) for one in np.unique(condition)], n_genes)
    rows = np.concatenate(groups)
    return cells[rows], condition[rows]
