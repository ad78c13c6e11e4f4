"""Gene graphs: annotation, similarity by shared terms, co-expression, and graphs of the user's own."""

from gears.graphs.annotation import GeneAnnotation
from gears.graphs.cache import cached_graph
from gears.graphs.coexpression import coexpression_graph
from gears.graphs.go import go_graph, jaccard
from gears.graphs.graph import Graph

__all__ = ["GeneAnnotation", "Graph", "cached_graph", "coexpression_graph", "go_graph", "jaccard"]
