"""Contexts and types of perturbation in the network."""

import numpy as np
import pytest
import torch
from model_twin import graph_of

from gears.conditions import NodeSet, contexts_of, kinds_of
from gears.model.config import ModelConfig
from gears.model.network import GEARSNetwork
from gears.prediction._stream import predict_changes

EDGES, WEIGHT = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([0.5, 1.0, 0.2])


def network(seed: int = 3, **more) -> GEARSNetwork:
    go, coexpress = graph_of(4, EDGES, WEIGHT), graph_of(7, EDGES, WEIGHT)
    return GEARSNetwork(go, coexpress, ModelConfig(hidden_size=6), seed=seed, **more).double()


def inputs() -> tuple[torch.Tensor, ...]:
    row, node = torch.tensor([0, 1, 1, 3]), torch.tensor([1, 0, 2, 3])
    return row, node, torch.tensor([4.0, 1.0, 3.0, 2.0])


def test_contexts_begin_as_the_published_network_and_one_has_no_parameters():
    plain, placed = network(), network(n_contexts=3, kinds=("CRISPRi",))
    context = torch.tensor([0, 1, 2, 1])
    assert set(plain.state_dict()) < set(placed.state_dict())
    one, _ = plain(*inputs())
    two, _ = placed(*inputs(), context=context)
    assert torch.equal(one, two)
    one.pow(2).sum().backward()
    two.pow(2).sum().backward()
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter.grad, placed.get_parameter(name).grad), name
    assert placed.placing.context_shift.grad.abs().sum() > 0
    assert list(network(n_contexts=1, kinds=("CRISPRi",)).state_dict()) == list(network().state_dict())


def test_types_begin_with_their_sign():
    placed = network(kinds=("CRISPRa", "CRISPRi", "knock-out"))
    assert placed.placing.type_scale[:, 0].tolist() == [-1.0, 1.0, 1.0]
    kind = torch.tensor([1, 1, 0, 2])
    one, _ = network()(*inputs())
    two, _ = placed(*inputs(), kind=kind)
    torch.testing.assert_close(one, two)
    down, _ = placed(*inputs(), kind=torch.tensor([0, 1, 0, 2]))
    assert not torch.allclose(down[0], two[0])
    down.sum().backward()
    assert placed.placing.type_scale.grad.abs().sum(1).ne(0).all()


@pytest.mark.parametrize("unseen", [None, 2], ids=["all seen", "one unseen"])
def test_prediction_is_the_forward_pass_in_every_context(unseen):
    placed = network(n_contexts=3, kinds=("CRISPRa", "CRISPRi"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in placed.placing.parameters():
            parameter.normal_(generator=generator)
    if unseen is not None:
        placed.placing.trained_on({0, 1, 2} - {unseen})
    placed.eval()
    sets = [NodeSet([1], context=0, kind=1), NodeSet([0, 2], context=2), NodeSet([], context=1), [3]]
    row, node, weight = inputs()
    context, kind = torch.from_numpy(contexts_of(sets)), torch.from_numpy(kinds_of(sets))
    with torch.no_grad():
        want, _ = placed(row, node, weight, context=context, kind=kind)
    found = predict_changes(placed, sets).delta_UG
    np.testing.assert_allclose(found, want.numpy(), atol=1e-12)
    with torch.no_grad():
        mean = placed.placing.context_shift[:2].mean(0)
        rows = placed.placing._rows(placed.placing.context_shift, torch.tensor([2]))[0]
    own = placed.placing.context_shift[2].detach()
    torch.testing.assert_close(rows, own if unseen is None else mean)


def test_node_sets_travel():
    import pickle

    one = pickle.loads(pickle.dumps(NodeSet([4, 2], context=3, kind=1)))
    assert (list(one), one.context, one.kind) == ([4, 2], 3, 1)
    assert contexts_of([[1], NodeSet([1], context=2)]).tolist() == [0, 2]
