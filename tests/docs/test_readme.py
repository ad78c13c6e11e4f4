"""What the README shows runs (the files that it names: test_docs.py)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.slow
def test_the_ten_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from gears.simulate import simulate_to_h5ad

    monkeypatch.chdir(tmp_path)
    simulate_to_h5ad("screen.h5ad", n_genes=40, n_singles=10, n_pairs=8, cells_per_condition=12, n_control=40)
    lines = BLOCKS[1].replace("epochs=20", "epochs=1").replace("GEARS(pert_data)", "GEARS(pert_data, device='cpu')")
    exec(compile(lines, "README.md", "exec"), {})
    assert "CDK15+GNG4" in capsys.readouterr().out
    assert (tmp_path / "models" / "run1" / "manifest.json").is_file()


@pytest.mark.slow
def test_the_three_lines_from_adata_to_adata_run() -> None:
    from gears.simulate import simulated_screen

    adata, _ = simulated_screen(n_genes=40, n_singles=10, n_pairs=8, cells_per_condition=12, n_control=40)
    lines = BLOCKS[0].replace("PerturbationModel(adata)", "PerturbationModel(adata, device='cpu')")
    names = {"adata": adata}
    *before, last = lines.strip().splitlines()
    exec(compile("\n".join(before), "README.md", "exec"), names)
    assert len(eval(last, names)) == 5


def test_the_lines_for_several_processes_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_workers: None
) -> None:
    """On two CPU processes, and a small graph, instead of the GPUs that they name."""
    from gears.simulate import simulate_to_h5ad

    monkeypatch.chdir(tmp_path)
    simulate_to_h5ad(
        "data/screen.h5ad",
        gene_names=["CDK15", "GNG4", *(f"G{i}" for i in range(38))],
        n_singles=10,
        n_pairs=8,
        cells_per_condition=12,
        n_control=40,
    )
    small = 'device="cpu", n_gpus=2, data_config={"default_pert_graph": False}'
    lines = BLOCKS[2].replace("gpu_ids=[0, 2]", small).replace("cuda:0", "cpu")
    lines = lines.replace('"epochs": 20, "batch_size": 32', '"epochs": 1, "batch_size": 8')
    exec(compile(lines, "README.md", "exec"), {"__name__": "__main__"})
    assert (tmp_path / "predictions.csv").read_text().count("\n") == 3
