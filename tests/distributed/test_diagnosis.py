"""`gears doctor` on this machine, and what it concludes of others."""

import json
import re
from pathlib import Path

import pytest

from gears.cli import main
from gears.core._findings import Finding
from gears.core._installation import cores
from gears.distributed import doctor
from gears.distributed.doctor import diagnose, findings_of

SOFTWARE = dict.fromkeys(doctor.PACKAGES, "1")
MACHINE = {"open_files": 1024, "load": 3.0, "usable_cores": 2}
GPU = {
    "name": "H100", "uuid": "GPU-a", "memory_total": 2**36, "memory_used": 0, "utilisation": 0, "processes": 0,
    "users": (), "busy": False,
}  # fmt: skip
DEVICE = {"index": 0, "name": "H100", "capability": "9.0", "memory_bytes": 2**36}
CUDA = {
    "built_for": "12.8", "available": True, "cudnn": 9, "nccl": "2.27", "gloo": True, "mps": False,
    "devices": [DEVICE],
}  # fmt: skip
HIDDEN = {"cuda": CUDA | {"devices": []}, "gpus": [GPU], "variables": {"CUDA_VISIBLE_DEVICES": ""}}
NONE = {"built_for": None, "nccl": None, "gloo": True, "devices": []}


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({"cuda": NONE, "gpus": [GPU]}, "error", "CPU build"),
        (HIDDEN, "error", "CUDA_VISIBLE_DEVICES='' hides all 1 GPU"),
        ({"cuda": CUDA | {"devices": []}, "gpus": [GPU]}, "error", "torch sees none"),
        ({"cuda": NONE}, "note", "no GPU"),
        ({"cuda": CUDA | {"nccl": None}}, "note", "no NCCL"),
        ({"cuda": CUDA | {"gloo": False}}, "error", "no gloo"),
        ({"gpus": [GPU | {"busy": True, "users": ("pid 7 (ada)",)}]}, "note", r"pid 7 \(ada\)"),
        ({"variables": {"NCCL_TIMEOUT": "1"}}, "note", "NCCL_TIMEOUT is no variable"),
        ({"variables": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}, "note", "use INFO"),
        ({"variables": {"RANK": "0"}}, "note", "left over"),
        ({"machine": {"open_files": 64}}, "error", "only 64 files"),
        ({"machine": {"load": 9.04, "usable_cores": 2}}, "note", "9.04 processes want 2 cores.*OMP_NUM_THREADS=1"),
        ({"software": SOFTWARE | {"anndata": None}}, "error", "missing: anndata"),
        ({"software": SOFTWARE | {"cell-gears": "0.1.2"}}, "note", "another environment"),
        ({"gpus": [GPU]}, None, "a machine in order"),
    ],
)
def test_what_follows_from_the_facts(change: dict, level: str | None, words: str) -> None:
    facts = {"software": SOFTWARE, "machine": MACHINE, "cuda": CUDA, "variables": {}, **change}
    found = findings_of(**facts | {"gpus": {"found": change.get("gpus", [])}})
    assert [one.severity for one in found] == [level] * (level is not None)
    assert all(re.search(words, one.what) for one in found)


def test_cores_are_those_of_the_container(tmp_path: Path) -> None:
    every = cores(tmp_path / "none")
    quota = tmp_path / "cpu.max"
    for text, expected in (("max 100000", every), ("100000 100000", 1), ("50000 100000", 1), ("9900000 100000", every)):
        quota.write_text(text)
        assert cores(quota) == expected


def test_this_machine_by_the_command_and_an_error_gives_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.setenv("NCCL_TIMEOUT", "5")
    code = main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["software"]["gears"]
    assert found["machine"]["usable_cores"] >= 1
    assert found["cuda"]["gloo"] is True
    assert found["variables"]["NCCL_TIMEOUT"] == "5"
    assert code == int(any(finding["level"] == "error" for finding in found["findings"]))
    assert main(["doctor"]) == code
    text = capsys.readouterr().out
    for word in ("software", "usable_cores", "built_for", "NCCL_TIMEOUT", "GPUs", "note: NCCL_TIMEOUT is no"):
        assert word in text
    monkeypatch.setattr(
        doctor, "findings_of", lambda *facts: [Finding("machine", "a", severity="note"), Finding("machine", "b")]
    )
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-3:] == ["error: b", "note: a", "see the errors"]
    assert main(["doctor", "--jsn"]) == 2


def test_recorded_cards_are_shown(monkeypatch) -> None:
    users = ("pid 7 (python, ada, 3.1 GiB)",)
    monkeypatch.setattr(doctor, "look_at_gpus", lambda: {"found": [GPU | {"users": users}]})
    monkeypatch.setattr(doctor, "look_at_cuda", lambda: CUDA)
    text = diagnose({}).render()
    assert "0 H100 GPU-a: 0.0 of 64.0 GiB used, 0 %; pid 7 (python, ada, 3.1 GiB)" in text
    assert "0 H100 (64 GiB)" in text
    assert "(none of the relevant ones is set)" in text
