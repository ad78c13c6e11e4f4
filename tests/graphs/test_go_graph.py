"""GO graph against brute force; independence of node order and chunk size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_coexpression import edges_of

from gears.graphs import GeneAnnotation, go_graph
from gears.graphs import _go as go

TERMS = st.dictionaries(
    st.sampled_from([f"g{i:02d}" for i in range(14)]),
    st.sets(st.integers(0, 9).map(lambda i: f"t{i}"), max_size=6),
    min_size=1,
)


def brute_force(terms_of, threshold, k) -> dict[tuple[str, str], float]:
    edges = {}
    for target, own in terms_of.items():
        scored = []
        for source, theirs in terms_of.items():
            either = len(own | theirs)
            weight = len(own & theirs) / either if either else 0.0
            if source != target and weight > threshold:
                scored.append((-weight, source))
        edges.update({(source, target): -weight for weight, source in sorted(scored)[:k]})
        if own:
            edges[target, target] = 1.0
    return edges


@given(TERMS, st.sampled_from([0.0, 0.1, 0.25, 0.5]), st.integers(0, 6))
def test_equals_brute_force(terms_of, threshold, k):
    expected = brute_force(terms_of, threshold, k)
    for chunk, frequent in ((go._CHUNK_BYTES, go._FREQUENT), (4 * 14 * 3, 0), (4 * 14 * 3, 3)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(go, "_CHUNK_BYTES", chunk)
            patch.setattr(go, "_FREQUENT", frequent)
            graph = go_graph(GeneAnnotation.from_dict(terms_of), sorted(terms_of), threshold=threshold, k=k)
        assert edges_of(graph) == expected


@given(TERMS, st.randoms(use_true_random=False))
def test_edges_do_not_depend_on_the_order_of_nodes(terms_of, random):
    annotation = GeneAnnotation.from_dict(terms_of)
    nodes = sorted(terms_of)
    expected = edges_of(go_graph(annotation, nodes, k=3))
    random.shuffle(nodes)
    graph = go_graph(annotation, nodes, k=3)
    assert graph.nodes == tuple(nodes)
    assert edges_of(graph) == expected


def test_unknown_nodes_are_isolated_and_aliases_resolved():
    annotation = GeneAnnotation.from_dict({"A": ["t1", "t2"], "B": ["t1"], "C": []}, aliases={"OLD": "A"})
    edges = edges_of(go_graph(annotation, ["unknown", "OLD", "B", "C", "A"]))
    pairs = {("OLD", "B"): 0.5, ("A", "B"): 0.5, ("OLD", "A"): 1.0}
    expected = {**pairs, **{(b, a): w for (a, b), w in pairs.items()}, **{(x, x): 1.0 for x in ("OLD", "B", "A")}}
    assert edges == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [({"threshold": -0.1}, "from 0 to 1"), ({"threshold": float("nan")}, "from 0 to 1"), ({"k": -1}, "k=-1")],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        go_graph(GeneAnnotation.from_dict({"A": ["t"]}), ["A"], **options)
