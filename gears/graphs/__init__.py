"""Gene graphs: annotation, similarity by shared terms, co-expression, and graphs of the user's own."""

from gears.graphs.annotation import GeneAnnotation
from gears.graphs.coexpression import coexpression_graph
from gears.graphs.edge_tables import EdgeFile
from gears.graphs.embeddings import GeneEmbedding
from gears.graphs.go import go_graph, jaccard
from gears.graphs.graph import Graph, cached_graph

__all__ = [
    "EdgeFile", "GeneAnnotation", "GeneEmbedding", "Graph", "cached_graph", "coexpression_graph", "go_graph", "jaccard",
]  # fmt: skip
