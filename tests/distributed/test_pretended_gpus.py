"""Two workers on pretended GPUs, by the rules of NCCL, against one process; what they ask of each other in a step."""

import pytest
from pretending import pretended

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COLLECTIVES = 7  # of a step without uncertainty; see Division in gears/model/layers.py


@pytest.mark.parametrize("case", ["moments", pytest.param("cells", marks=pytest.mark.long)])
def test_two_gpus_are_one_process(case: str) -> None:
    found = pretended("two_gpus.py", case)[case]
    assert max(found["losses"], found["changes"]) < 1e-10
    assert found["devices"] == ["cuda:1", "cuda:0"]
    assert not found["cuda in the parent"], found["calls in the parent"]
    kinds = found["of a step"]
    assert len(kinds) <= COLLECTIVES, kinds
    assert kinds[-1] == "allreduce by average"


@pytest.mark.long
def test_shards_of_two_gpus_are_one_process() -> None:
    found = pretended("two_gpus.py", "reproducible")["reproducible"]
    assert max(found["losses"], found["changes"]) < 1e-12
    assert found["of a step"] == ["allgather_base by _of_all"] * COLLECTIVES
