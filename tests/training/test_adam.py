"""The optimiser of a run against torch's own."""

from __future__ import annotations

import subprocess
import sys

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


def test_a_step_imports_no_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from gears.training._schedules import Adam\n"
        "weight = torch.nn.Parameter(torch.ones(3))\n"
        "adam = Adam([weight], fused=True)\n"
        "adam.zero_grad(); weight.sum().backward(); adam.step(); adam.load_state_dict(adam.state_dict())\n"
        "schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 1.0); schedule.step()\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
