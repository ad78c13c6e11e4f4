"""Similarities of genes that the prior may use beside that of GO terms, each with a weight by evidence.

A similarity is a function that gives a table: a row of numbers for every node of the perturbation graph. Genes are
compared by the cosine of their rows. Another one is registered in one place::

    from gears.graphs import SIMILARITIES

    @SIMILARITIES.register("pathways")
    def pathways(pert_data, inputs):
        return pd.read_csv("pathways.csv", index_col=0).reindex(pert_data.pert_names).to_numpy()

at the top level of a module that every worker imports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from gears.core._registry import Registry
from gears.files._cache import cached_arrays
from gears.files.formats import content_hash
from gears.graphs._effects import NodeEffects
from gears.graphs._embeddings import embedding_of
from gears.graphs._knowledge import KNOWLEDGE, knowledge_table, term_vectors
from gears.graphs._profiles import control_profiles

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen
    from gears.pertdata import PertData

EMBEDDINGS = "embeddings"
"""Name of the table that the network's perturbation embedding starts from."""
EFFECTS = "effects in "
"""Begins the names of similarities by effects of other screens."""


@dataclass(frozen=True, eq=False)
class PriorInputs:
    """What a user gives the prior of a model beside the screen."""

    tables: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Rows of numbers for the P nodes of the perturbation graph by name, (P, H) each; NaN where a node has none."""
    effects: Mapping[str, NodeEffects] = field(default_factory=dict)
    """Effects of other screens by the name of their similarity."""

    @classmethod
    def of(cls, pert_data: PertData, hidden_size: int, pert_embedding: Any) -> PriorInputs:
        """From the options of a model: gene embeddings are brought to `hidden_size` numbers a node."""
        if pert_embedding is None:
            return cls()
        nodes = tuple(map(str, pert_data.pert_names))
        start_PH = embedding_of(pert_embedding).start(nodes, hidden_size, pert_data.annotation.resolve)
        return cls({EMBEDDINGS: start_PH})

    def stored(self, store: Callable[[dict[str, np.ndarray]], str]) -> dict[str, dict[str, str] | None]:
        """The sources as files, from which another process reads the same to the bit."""
        effects = {name.removeprefix(EFFECTS): store(one.table.exact()) for name, one in self.effects.items()}
        tables = {name: store({"rows": rows}) for name, rows in self.tables.items() if name != EMBEDDINGS}
        return {"effects_of": effects or None, "similarities": tables or None}

    @property
    def has_sources(self) -> bool:
        """Whether there is more than gene embeddings."""
        return bool(self.record())

    def record(self) -> dict[str, str]:
        """Content hash of each source by the name of its similarity."""
        of_tables = {name: content_hash(table) for name, table in self.tables.items() if name != EMBEDDINGS}
        return {name: effects.table.content_hash for name, effects in self.effects.items()} | of_tables

    @cached_property
    def content_hash(self) -> str:
        tables = (part for entry in sorted(self.tables.items()) for part in entry)
        return content_hash(
            *tables, *(f"{name}: {one.table.content_hash}" for name, one in sorted(self.effects.items()))
        )

    @property
    def start_PH(self) -> np.ndarray | None:
        """Rows that the network's perturbation embedding starts from, NaN where they are random; None without any."""
        return self.tables.get(EMBEDDINGS)


SIMILARITIES: Registry[Callable[[Any, PriorInputs], np.ndarray | sparse.csr_matrix | None]] = Registry(
    "similarity of genes"
)
"""Functions of a PertData and the model's :class:`PriorInputs`. They give rows of all P nodes: dense, NaN or all zero
where a node has none, or CSR with rows of length 1 or 0; None where there is no such table."""


@SIMILARITIES.register("co-expression")
def _co_expression(pert_data: PertData, inputs: PriorInputs) -> np.ndarray:
    """Correlation profiles over control cells, of measured genes."""
    profile_GK, column_P = stored_profiles(pert_data.screen), columns_of(pert_data)
    return np.where(column_P[:, None] < 0, np.nan, profile_GK[column_P])


def _knowledge(source: str, pert_data: PertData, inputs: PriorInputs) -> sparse.csr_matrix:
    """Terms of a packaged source of knowledge, weighted by their information content."""
    return _vectors_of(source, tuple(pert_data.pert_names.tolist()))


@lru_cache(maxsize=len(KNOWLEDGE))  # a training fits several priors with the same nodes
def _vectors_of(source: str, nodes: tuple[str, ...]) -> sparse.csr_matrix:
    return term_vectors(knowledge_table(source), nodes)


for _source in KNOWLEDGE:
    SIMILARITIES.add(_source, partial(_knowledge, _source))


@SIMILARITIES.register(EMBEDDINGS)
def _embeddings(pert_data: PertData, inputs: PriorInputs) -> np.ndarray | None:
    """The user's gene embeddings."""
    return inputs.tables.get(EMBEDDINGS)


_PACKAGED = frozenset(SIMILARITIES)


def similarity_key(pert_data: PertData, inputs: PriorInputs) -> dict[str, str]:
    """What a prior depends on by its similarities, for the cache.

    Packaged tables follow from the screen, the nodes and the inputs, so that a worker need not compute them to find the
    prior in the cache; those registered elsewhere are hashed.
    """
    others = {name: table_hash(SIMILARITIES[name](pert_data, inputs)) for name in SIMILARITIES if name not in _PACKAGED}
    return {"names": ", ".join(SIMILARITIES), "inputs": inputs.content_hash, **others}


def table_hash(table: np.ndarray | sparse.csr_matrix | None) -> str:
    return (
        content_hash(table)
        if table is None or isinstance(table, np.ndarray)
        else content_hash(table.data, table.indices, table.indptr)
    )


def stored_profiles(screen: PreparedScreen) -> np.ndarray:
    """:func:`gears.graphs._profiles.control_profiles` from the screen's cache: workers do not compute them again."""
    ids = screen.control_ids.tolist()
    controls = [screen.cells_of(control) for control in ids] if screen.has_cells else screen.control_sample()[1]
    key = {"screen": screen.content_hash, "controls": content_hash(*controls)}
    arrays = cached_arrays(screen.folder / "priors", "profiles", key, lambda: {"profiles": control_profiles(screen)})
    return arrays["profiles"]


def columns_of(pert_data: PertData) -> np.ndarray:
    """Column of each perturbation node among the measured genes, -1 where it is not measured, (P,) int64."""
    column = {gene: number for number, gene in enumerate(pert_data.screen.gene_names)}
    return np.array([column.get(name, -1) for name in pert_data.pert_names.tolist()], dtype=np.int64)
