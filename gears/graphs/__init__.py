"""Gene graphs: annotation, similarity by shared terms, co-expression, and custom graphs."""

from gears.graphs._annotation import GeneAnnotation
from gears.graphs._coexpression import coexpression_graph
from gears.graphs._edge_tables import EdgeFile
from gears.graphs._effects import GeneEffects
from gears.graphs._embeddings import GeneEmbedding
from gears.graphs._go import go_graph, jaccard
from gears.graphs._graph import Graph, cached_graph
from gears.graphs._knowledge import KNOWLEDGE, KnowledgeSource, knowledge_similarity, knowledge_table, weighted_cosine
from gears.graphs._similarities import SIMILARITIES
from gears.graphs._sources import read_effects

__all__ = [
    "KNOWLEDGE", "SIMILARITIES", "EdgeFile", "GeneAnnotation", "GeneEffects", "GeneEmbedding", "Graph",
    "KnowledgeSource", "cached_graph", "coexpression_graph", "go_graph", "jaccard", "knowledge_similarity",
    "knowledge_table", "read_effects", "weighted_cosine",
]  # fmt: skip
