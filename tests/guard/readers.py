"""What the package reads from disk: how such a file comes about, and what reading it gives.

`sealed` files are the package's own: any change of a byte must be noticed or be without effect. The others are the
user's text and tables, in which another letter is another content: they must be read or raise an error that names it.
"""

import itertools
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from anndata import AnnData

from gears.files.formats import content_hash, write_npz

GENES = [f"GX{i:02d}" for i in range(30)]


@dataclass(frozen=True)
class Reader:
    """A kind of file: made in a folder, read from it as values that can be hashed."""

    name: str
    make: Callable[[Path, AnnData], Any]
    read: Callable[[Path], Any]
    sealed: bool = False


READERS: dict[str, Reader] = {}


def reader(make: Callable[[Path, AnnData], Any], *, sealed: bool = False) -> Callable[..., Any]:
    def note(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
        name = read.__name__.removeprefix("read_")
        READERS[name] = Reader(name, make, read, sealed)
        return read

    return note


def files(folder: Path) -> list[Path]:
    """What may be damaged: everything but locks."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not path.name.endswith(".lock"))


def plain(value: Any) -> Any:
    """Tensors and arrays as arrays, containers as they are, for a hash of everything."""
    import torch

    if isinstance(value, torch.Tensor):
        values = value.double() if value.is_floating_point() else value
        return ["tensor", str(value.dtype), values.tolist()]
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return [[str(key), plain(value[key])] for key in value]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)


def digest(value: Any) -> str:
    return content_hash(plain(value))


def make_run(folder: Path, adata: AnnData) -> None:
    """A prepared screen and a model trained on it, with checkpoints, split and prior."""
    from gears import GEARS, PertData

    data = PertData(folder / "data", gene2go={gene: {f"T{i % 7}", f"T{i % 5}"} for i, gene in enumerate(GENES)})
    data.new_data_process("toy", adata)
    data.prepare_split("simulation", seed=1)
    data.get_dataloader(batch_size=64)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=4)
    model.train(steps=1, evaluate_test=False, verbose=False, save_path=str(folder / "run"))


def make_model(folder: Path, adata: AnnData) -> None:
    make_run(folder.parent / f"{folder.name}-made", adata)
    source = folder.parent / f"{folder.name}-made" / "run"
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix in (".json", ".npz", ".pt"):
            (folder / path.name).write_bytes(path.read_bytes())


@reader(make_model, sealed=True)
def read_model(folder: Path) -> Any:
    from gears import GEARS

    model = GEARS.from_pretrained(folder, device="cpu")
    found = model.predict([["GX00"], ["GX00", "GX01"]])
    parts = model.parts
    assert parts is not None
    split = None if parts.split is None else parts.split.to_dict()
    names = [parts.gene_names, parts.gene_ids, parts.pert_names, split, dict(parts.provenance)]
    return [found.expression_UG, names, parts.go.hash, parts.coexpress.hash, parts.config.to_dict()]


def make_checkpoint(folder: Path, adata: AnnData) -> None:
    made = folder.parent / f"{folder.name}-made"
    make_run(made, adata)
    file = sorted((made / "run" / "checkpoints").glob("*.pt"))[-1]
    (folder / "checkpoint.pt").write_bytes(file.read_bytes())


@reader(make_checkpoint, sealed=True)
def read_checkpoint(folder: Path) -> Any:
    from gears.training import _checkpoints as checkpoints

    return checkpoints.read(folder / "checkpoint.pt")


def make_screen(folder: Path, adata: AnnData) -> None:
    from gears.data.screen.prepare import prepare_screen

    prepare_screen(adata, folder / "toy")
    for lock in folder.glob(".*.lock"):
        lock.unlink()


@reader(make_screen, sealed=True)
def read_screen(folder: Path) -> Any:
    from gears.data.screen._prepared import PreparedScreen

    screen = PreparedScreen.open(folder / "toy")
    matrix, moments, ranking = screen.cells.csr(), screen.statistics, screen.de
    assert ranking is not None
    tables = [moments.mean, moments.m2, moments.m3, moments.m4, moments.nonzero, moments.above, moments.below]
    names = [screen.labels, screen.condition_names, screen.gene_names, screen.gene_ids]
    screen.verify()
    return [matrix.toarray(), screen.cell_label, moments.n, tables, ranking.order, ranking.scores, names]


def make_split(folder: Path, adata: AnnData) -> None:
    from gears.data.splits import make_split as draw

    draw(list(dict.fromkeys(adata.obs["condition"])), "simulation").save(folder / "split.json")


@reader(make_split, sealed=True)
def read_split(folder: Path) -> Any:
    from gears.data.splits import Split

    return Split.load(folder / "split.json").to_dict()


def make_cache(folder: Path, _: AnnData) -> None:
    read_cache(folder)
    for lock in folder.glob("*.lock"):
        lock.unlink()


@reader(make_cache, sealed=True)
def read_cache(folder: Path) -> Any:
    from gears.files._cache import cached_arrays

    return cached_arrays(folder, "graph", {"a": 1}, lambda: {"x": np.arange(40.0), "y": np.arange(7)})


@reader(lambda folder, adata: adata.write_h5ad(folder / "screen.h5ad"))
def read_h5ad(folder: Path) -> Any:
    from gears.data.reading._matrix import as_csr
    from gears.data.reading._open import open_screen

    found = open_screen(folder / "screen.h5ad")
    return [as_csr(found.X).toarray(), list(found.obs_names), list(found.var_names), list(found.obs["condition"])]


def make_ten_x(folder: Path, adata: AnnData) -> None:
    import h5py
    from scipy import sparse

    matrix = sparse.csr_matrix(adata.X)
    with h5py.File(folder / "counts.h5", "w") as file:
        group = file.create_group("matrix")
        group["data"], group["indices"], group["indptr"] = matrix.data, matrix.indices, matrix.indptr
        group["shape"] = np.array([adata.n_vars, adata.n_obs])
        group["barcodes"] = np.array(adata.obs_names, dtype="S")
        features = group.create_group("features")
        features["id"] = np.array(adata.var_names, dtype="S")
        features["name"] = np.array(adata.var["gene_name"], dtype="S")
        features["feature_type"] = np.array(["Gene Expression"] * adata.n_vars, dtype="S")


@reader(make_ten_x)
def read_ten_x(folder: Path) -> Any:
    from gears.data.reading._open import open_screen

    found = open_screen(folder / "counts.h5")
    return [found.X.toarray(), list(found.obs_names)]


def make_mtx(folder: Path, adata: AnnData) -> None:
    from scipy import sparse
    from scipy.io import mmwrite

    mmwrite(folder / "matrix.mtx", sparse.csr_matrix(adata.X).T)
    (folder / "barcodes.tsv").write_text("\n".join(adata.obs_names))
    (folder / "features.tsv").write_text("\n".join(f"{g}\t{g}\tGene Expression" for g in adata.var["gene_name"]))


@reader(make_mtx)
def read_mtx(folder: Path) -> Any:
    from gears.data.reading._open import open_screen

    return list(open_screen(folder).obs_names)


def make_gene_sets(folder: Path, _: AnnData) -> None:
    (folder / "genes.txt").write_text("gene\n" + "\n".join(GENES))
    (folder / "genes.json").write_text(json.dumps(GENES))
    (folder / "genes.pkl").write_bytes(pickle.dumps(np.array(GENES), protocol=4))
    np.save(folder / "genes.npy", np.array(GENES, dtype=object), allow_pickle=True)


@reader(make_gene_sets)
def read_gene_sets(folder: Path) -> Any:
    from gears.graphs._nodes import read_gene_set

    return [read_gene_set(path) for path in sorted(folder.iterdir())]


def make_annotations(folder: Path, _: AnnData) -> None:
    import gzip

    from gears.graphs import GeneAnnotation

    row = "DB\tID{i}\t{gene}\t\tGO:{i}\tREF\tIDA\t\tP\tname\tOLD{i}\tprotein\ttaxon:9606\t20200101\tDB"
    gaf = "!gaf-version: 2.2\n" + "\n".join(row.format(i=i, gene=gene) for i, gene in enumerate(GENES))
    (folder / "a.gaf").write_text(gaf)
    (folder / "a.gaf.gz").write_bytes(gzip.compress(gaf.encode(), mtime=0))
    (folder / "a.gmt").write_text("\n".join(f"T{i}\tnone\t" + "\t".join(GENES[i:]) for i in range(9)))
    (folder / "a.csv").write_text("\n".join(f"{gene},T{i % 4}" for i, gene in enumerate(GENES)))
    (folder / "a.json").write_text(json.dumps({gene: [f"T{i % 4}"] for i, gene in enumerate(GENES)}))
    write_npz(folder / "a.npz", GeneAnnotation.from_path(folder / "a.json").arrays())


@reader(make_annotations)
def read_annotations(folder: Path) -> Any:
    from gears.graphs import GeneAnnotation

    return [GeneAnnotation.from_path(path).content_hash for path in sorted(folder.iterdir())]


def make_edges(folder: Path, _: AnnData) -> None:
    from gears.graphs._edge_tables import pack_edges

    rows = [f"{a},{b},{0.5 + i / 100}" for i, (a, b) in enumerate(itertools.pairwise(GENES))]
    (folder / "edges.csv").write_text("source,target,weight\n" + "\n".join(rows))
    write_npz(folder / "edges.npz", pack_edges(GENES[:-1], GENES[1:], np.arange(1.0, 30.0)))


@reader(make_edges)
def read_edges(folder: Path) -> Any:
    from gears.graphs._edge_tables import EdgeFile

    found = []
    for path in sorted(folder.iterdir()):
        found.append(EdgeFile(path).graph(GENES, k=20, resolve=lambda name: None).hash)
    return found


def make_embeddings(folder: Path, _: AnnData) -> None:
    values = np.arange(60.0).reshape(30, 2) % 7
    (folder / "e.csv").write_text("\n".join(f"{gene},{a},{b}" for gene, (a, b) in zip(GENES, values, strict=True)))
    np.save(folder / "e.npy", values)
    write_npz(folder / "e.npz", {"names": np.array(GENES), "values": values})


@reader(make_embeddings)
def read_embeddings(folder: Path) -> Any:
    from gears.graphs import GeneEmbedding

    found = []
    for path in sorted(folder.iterdir()):
        names = GENES if path.suffix == ".npy" else None
        found.append(GeneEmbedding.of(path, names=names).values)
    return found


def make_tables(folder: Path, adata: AnnData) -> None:
    rows = [f"{cell},{label}" for cell, label in zip(adata.obs_names, adata.obs["condition"], strict=True)]
    (folder / "guides.csv").write_text("cell_barcode,condition\n" + "\n".join(rows))


@reader(make_tables)
def read_guides(folder: Path) -> Any:
    from gears.data.reading._guides import read_table

    return read_table(folder / "guides.csv").to_numpy().tolist()


def make_split_dicts(folder: Path, adata: AnnData) -> None:
    labels = list(dict.fromkeys(adata.obs["condition"]))
    parts = {"train": labels[:9], "val": labels[9:11], "test": labels[11:]}
    (folder / "split.json").write_text(json.dumps(parts))
    (folder / "split.pkl").write_bytes(pickle.dumps(parts, protocol=4))


@reader(make_split_dicts)
def read_split_dicts(folder: Path) -> Any:
    from gears.data.splits._registry import read_split_dict

    return [read_split_dict(path) for path in sorted(folder.iterdir())]


def make_cell_gears(folder: Path, _: AnnData) -> None:
    source = Path(__file__).parents[1] / "cell_gears" / "published" / "plain"
    for name in ("config.pkl", "model.pt"):
        (folder / name).write_bytes((source / name).read_bytes())


@reader(make_cell_gears)
def read_cell_gears(folder: Path) -> Any:
    from gears.files._untrusted import load_tensors
    from gears.files.formats import read_tensors

    return [load_tensors(folder / "config.pkl"), read_tensors(folder / "model.pt")]


def make_truth(folder: Path, _: AnnData) -> None:
    from gears.simulate import simulated_screen

    made = simulated_screen(n_genes=12, n_singles=4, n_pairs=2, cells_per_condition=4, n_control=6, seed=1)
    made[1].save(folder / "truth.npz")


@reader(make_truth)
def read_truth(folder: Path) -> Any:
    from gears.simulate import SimulatedTruth

    return SimulatedTruth.load(folder / "truth.npz").delta_CG


def make_zarr(folder: Path, adata: AnnData) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of anndata's coming default format
        adata.write_zarr(folder / "screen.zarr")


@reader(make_zarr)
def read_zarr(folder: Path) -> Any:
    from gears.data.reading._matrix import as_csr
    from gears.data.reading._open import open_screen

    found = open_screen(folder / "screen.zarr")
    return [as_csr(found.X).toarray(), list(found.obs_names), list(found.obs["condition"])]


def make_ontology(folder: Path, _: AnnData) -> None:
    import gzip

    stanza = "[Term]\nid: T{i}\nname: term {i}\nalt_id: A{i}\nis_a: T{up} ! its parent\nrelationship: part_of T0\n"
    text = "format-version: 1.2\n\n[Term]\nid: T0\n\n"
    text += "\n".join(stanza.format(i=i, up=(i - 1) // 2) for i in range(1, 12))
    (folder / "go.obo").write_text(text)
    (folder / "go.obo.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


@reader(make_ontology)
def read_ontology(folder: Path) -> Any:
    from gears.graphs._annotation_files import Ontology

    found = [Ontology.from_obo(path) for path in sorted(folder.iterdir())]
    return [[sorted(one.graph.edges), sorted(one.primary.items())] for one in found]


def make_archives(folder: Path, _: AnnData) -> None:
    import tarfile
    import zipfile

    content = folder / "perturb_processed.h5ad"
    content.write_bytes(b"what a screen holds " * 500)
    with zipfile.ZipFile(folder / "screen.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(content, "screen/perturb_processed.h5ad")
    for name in ("screen.tar.gz", "screen.tar.xz", "screen.tar"):
        with tarfile.open(folder / name, f"w:{name.partition('.tar')[2].strip('.')}") as tar:
            tar.add(content, "screen/perturb_processed.h5ad")
    content.unlink()


@reader(make_archives)
def read_archives(folder: Path) -> Any:
    import tempfile

    from gears.data.reading._download import extract_file

    found = []
    with tempfile.TemporaryDirectory() as out:
        for path in sorted(folder.iterdir()):
            target = extract_file(path, "perturb_processed.h5ad", Path(out, path.name))
            found.append(target.read_bytes().decode("latin-1"))
    return found


def make_names(folder: Path, _: AnnData) -> None:
    (folder / "names.txt").write_text("\n".join(GENES))


@reader(make_names)
def read_names(folder: Path) -> Any:
    from gears.graphs import GeneEmbedding

    return list(GeneEmbedding.of(np.arange(60.0).reshape(30, 2), names=folder / "names.txt").names)
