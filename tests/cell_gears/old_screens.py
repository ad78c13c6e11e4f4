"""The toy screen with real gene symbols, where scripts for cell-gears find a screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anndata import AnnData

    from gears.graphs import GeneAnnotation

# real symbols, so that the packaged annotation knows them
# fmt: off
SYMBOLS = [
    "CBL", "CNN1", "FEV", "KLF1", "AHR", "CEBPA", "TBX2", "SET", "FOXA1", "SAMD1", "BAK1", "BCL2",
    "CDKN1A", "CDKN1B", "CEBPB", "CEBPE", "COL1A1", "EGR1", "ETS2", "FOSB", "FOXO4", "GLB1L2",
    "HES7", "HK2", "HOXB9", "IER5L", "IKZF3", "IRF1", "JUN", "KIF18B",
]
# fmt: on


def renamed(adata: AnnData) -> AnnData:
    """The toy screen with real gene symbols."""
    new = dict(zip(adata.var["gene_name"], SYMBOLS, strict=True)) | {"ctrl": "ctrl"}
    labels = ["+".join(new[token] for token in label.split("+")) for label in adata.obs["condition"].astype(str)]
    adata.obs["condition"] = labels
    adata.var["gene_name"] = SYMBOLS
    return adata


def few_genes() -> GeneAnnotation:
    """The packaged annotation of few genes: the graph of all would take most of the time."""
    from gears.graphs import GeneAnnotation

    whole = GeneAnnotation.human()
    genes = [*SYMBOLS, *whole.genes[:100]]
    return GeneAnnotation.from_dict({gene: whole.terms_of([gene]).get(gene, set()) for gene in genes})


def put_norman(folder: Path, adata: AnnData) -> None:
    """A screen where cell-gears had put one, and the same as a file of the user."""
    (folder / "data" / "norman").mkdir(parents=True)
    adata.write_h5ad(folder / "data" / "norman" / "perturb_processed.h5ad")
    adata.write_h5ad(folder / "sample_adata.h5ad")
