"""Gene graphs: annotation, similarity by shared terms, co-expression, and custom graphs."""

from gears.graphs.annotation import GeneAnnotation
from gears.graphs.coexpression import coexpression_graph
from gears.graphs.edge_tables import EdgeFile
from gears.graphs.embeddings import GeneEmbedding
from gears.graphs.go import go_graph, jaccard
from gears.graphs.graph import Graph, cached_graph
from gears.graphs.knowledge import (
    KNOWLEDGE,
    KnowledgeSource,
    knowledge_similarity,
    knowledge_table,
    weighted_cosine,
)

__all__ = [
    "KNOWLEDGE", "EdgeFile", "GeneAnnotation", "GeneEmbedding", "Graph", "KnowledgeSource", "cached_graph",
    "coexpression_graph", "go_graph", "jaccard", "knowledge_similarity", "knowledge_table", "weighted_cosine",
]  # fmt: skip
