"""The optimiser of a run against torch's own."""

import torch

from gears.training._schedules import Adam


def run(kind: type[torch.optim.Adam], halfway: bool) -> tuple[torch.Tensor, dict]:
    weight = torch.nn.Parameter(torch.arange(6, dtype=torch.float32).reshape(2, 3))
    optimizer = kind([weight], lr=0.1, weight_decay=0.01, fused=True)
    for step in range(4):
        if halfway and step == 2:
            state = optimizer.state_dict()
            optimizer = kind([weight], lr=5.0)
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        (weight.sin().sum() ** 2).backward()
        optimizer.step()
    return weight.detach(), optimizer.state_dict()


def test_steps_and_state_are_those_of_torch() -> None:
    expected, expected_state = run(torch.optim.Adam, halfway=False)
    for halfway in (False, True):
        weight, state = run(Adam, halfway)
        assert torch.equal(weight, expected)
        assert state["param_groups"] == expected_state["param_groups"]
        for name, value in expected_state["state"][0].items():
            assert torch.equal(state["state"][0][name], value)
