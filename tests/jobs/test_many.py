"""Trainings side by side, and ensembles of what they leave."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from anndata import AnnData
from driving import trained_gears, workers_by_fork

from gears import GEARS, Ensemble, PertData, train_many
from gears.distributed import launch_many
from gears.jobs.ensemble import RunOutcome, ensemble_configs

DATA = {"default_pert_graph": False}
SPLIT = {"split": "simulation", "seed": 1}


def configuration(folder: Path, **args: object) -> dict[str, object]:
    settings = {
        "model_config": {"hidden_size": 8, "uncertainty": True},
        "epochs": 1,
        "objective": "cells",
        "dtype": "float64",
    }
    return {
        "pert_data_path": folder,
        "dataset_name": "small",
        "split_config": SPLIT,
        "data_config": DATA,
        "args": {**settings, "epochs": 1, "prior": None, "batch_size": 24, "verbose": False, **args},
    }


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory, small_screen: tuple[AnnData, object]) -> Path:
    folder = tmp_path_factory.mktemp("screens")
    small_screen[0].copy().write_h5ad(folder / "small.h5ad")
    return folder


@pytest.fixture(scope="module")
def outcomes(screens: Path) -> list[RunOutcome]:
    """Seeds 1, 2 and between them a training whose loss leaves the range of numbers; two at a time."""
    first, last = ensemble_configs(configuration(screens), [1, 2], screens / "models")
    bad = configuration(screens, lr=1e300, save_path=str(screens / "models" / "bad"))
    with workers_by_fork():
        return train_many([first, bad, last], device="cpu", n_at_once=2)


@pytest.mark.slow
def test_results_in_order_and_one_failure_loses_nothing(outcomes: list[RunOutcome], screens: Path) -> None:
    assert [outcome.ok for outcome in outcomes] == [True, False, True]
    assert [Path(outcome.save_path).name for outcome in outcomes] == ["seed-1", "bad", "seed-2"]
    assert [Path(outcomes[number].result.save_path).name for number in (0, 2)] == ["seed-1", "seed-2"]
    assert [outcome.device for outcome in outcomes] == ["cpu"] * 3
    assert str(outcomes[1].error).startswith("run 2 on cpu failed: FloatingPointError: the loss is")
    assert "Original traceback" in str(outcomes[1].error)
    assert "FloatingPointError" in outcomes[1].error.details
    assert outcomes[1].result is None
    result = outcomes[0].result
    assert len(result.history) == 1
    assert {"gears", "additive"} <= set(result.table["method"])

    pert_data = PertData(screens, **DATA)
    pert_data.load("small")
    pert_data.prepare_split(**SPLIT)
    model = trained_gears(
        pert_data, uncertainty=True, seed=2, epochs=1, objective="cells", prior=None, batch_size=24, dtype="float64"
    )
    state = torch.load(Path(outcomes[2].save_path) / "model.pt", weights_only=True)
    assert all((state[key] - value).abs().max() < 1e-9 for key, value in model.best_model.state_dict().items())


@pytest.mark.slow
def test_tasks_of_dask_train_the_same_models(outcomes, screens: Path, dask_address: str, monkeypatch) -> None:
    monkeypatch.chdir(screens)  # where dask's workers did not start
    first = ensemble_configs(configuration(Path()), [1], "dask")
    bad = configuration(Path(), lr=1e300, save_path="dask/bad")
    on_dask = train_many([*first, bad], device="cpu", dask=dask_address)
    assert [outcome.ok for outcome in on_dask] == [True, False]
    assert str(on_dask[1].error).startswith("run 2 on cpu failed: FloatingPointError: the loss is")
    assert "FloatingPointError" in on_dask[1].error.details
    tables = [run[0].result.table["value"].tolist() for run in (outcomes, on_dask)]
    assert tables[1] == pytest.approx(tables[0], nan_ok=True)
    states = [torch.load(Path(run[0].save_path) / "model.pt", weights_only=True) for run in (outcomes, on_dask)]
    assert all((states[1][key] - value).abs().max() < 1e-9 for key, value in states[0].items())
    with pytest.raises(ValueError, match="omit gpu_ids and n_at_once"):
        train_many(first, n_at_once=2, dask=dask_address)


@pytest.mark.slow
def test_an_ensemble_predicts_mean_and_spread(outcomes: list[RunOutcome]) -> None:
    ensemble = Ensemble.load(outcomes, device="cpu")
    assert len(ensemble) == 2, "the failed training is excluded"
    gene, other = ensemble.pert_list[:2]
    predicted = ensemble.predict([gene, f"{gene}+{other}"])
    each = [model.predict([gene, f"{gene}+{other}"], clip=False) for model in ensemble.models]
    mean = (each[0].expression_UG + each[1].expression_UG) / 2
    np.testing.assert_allclose(predicted.expression_UG, np.maximum(mean, 0), atol=1e-12)
    apart = np.abs(each[0].expression_UG - each[1].expression_UG) / np.sqrt(2)
    assert apart.max() > 0
    np.testing.assert_allclose(predicted.spread_UG, apart, atol=1e-12)
    np.testing.assert_allclose(predicted.spread(gene), apart[0], atol=1e-12)
    variance = (each[0].cell_sd ** 2 + each[1].cell_sd ** 2) / 2 + apart**2
    np.testing.assert_allclose(predicted.cell_sd**2, variance, rtol=1e-9)
    assert predicted.to_frame("spread").iloc[0].to_numpy() == pytest.approx(apart[0])
    assert (predicted.n_models, len(predicted), len(predicted.gene_names)) == (2, 2, 60)
    assert ensemble.predict(gene)[gene] == pytest.approx(predicted[gene])
    with pytest.raises(FileNotFoundError, match="holds no models of"):
        Ensemble.load(Path(outcomes[0].save_path))
    again = Ensemble.load(Path(outcomes[0].save_path).parent, device="cpu").predict(gene)
    np.testing.assert_array_equal(again[gene], ensemble.predict(gene)[gene])


def test_an_ensemble_is_trained_in_one_call_and_does_not_depend_on_how_many_are_trained_at_once(
    screens: Path, monkeypatch: pytest.MonkeyPatch, quick_workers: None
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # so that threads are those that the package chooses
    config = configuration(screens, dtype="float32", objective="moments", batch_size=None)
    ensembles = [Ensemble.train(config, [1, 2], screens / f"{n}-at-once", n_at_once=n, device="cpu") for n in (1, 2)]
    gene, other = ensembles[0].pert_list[:2]
    first, second = (ensemble.predict([gene, f"{gene}+{other}"]) for ensemble in ensembles)
    np.testing.assert_array_equal(first.expression_UG, second.expression_UG)
    assert first.spread_UG.max() > 0


def test_members_that_agree_to_the_bit_are_reported(small_data: PertData, caplog: pytest.LogCaptureFixture) -> None:
    models = [GEARS(small_data, device="cpu") for _ in range(3)]
    for seed, model in enumerate(models):
        model.model_initialize(hidden_size=8, seed=seed)
        model.train(epochs=0, evaluate_test=False, verbose=False)
    Ensemble(models)
    assert "3 equal members: no network is used; prior=None trains networks that differ" in caplog.text
    caplog.clear()
    models[0].model_initialize(hidden_size=8, seed=1)
    Ensemble(models)
    assert "equal members" not in caplog.text
    Ensemble([models[0], models[0]])
    assert "2 equal members: their weights are the same; give other seeds" in caplog.text


def test_models_that_do_not_belong_together(outcomes: list[RunOutcome]) -> None:
    model = GEARS.from_pretrained(outcomes[0].save_path, device="cpu")
    with pytest.raises(ValueError, match="at least two models; found 1"):
        Ensemble([model])
    other = GEARS.from_pretrained(outcomes[0].save_path, device="cpu")
    object.__setattr__(other.parts, "gene_names", (*other.parts.gene_names[:-1], "OTHER"))
    with pytest.raises(ValueError, match=r"have other gene_names.*only here: OTHER"):
        Ensemble([model, other])


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ([], "at least one configuration"),
        ([{"args": {"save_path": "m"}}], "configuration 1 of 1: pert_data_path, dataset_name missing"),
        ([{"pert_data_path": "d", "dataset_name": "x", "arguments": {}}], "did you mean 'args'"),
        ([configuration(Path("d"), save_path="m", epoch=3)], "configuration 1 of 1.*did you mean 'epochs'"),
        ([configuration(Path(), save_path="m")] * 2, "several configurations have the save_path"),
    ],
)
def test_wrong_configurations_start_nothing(configs: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train_many(configs, device="cpu")


def test_a_seed_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has a seed twice"):
        ensemble_configs(configuration(tmp_path), [1, 2, 1], tmp_path)


def _work(rank: int, world_size: int, what: str) -> str:
    import os
    import signal

    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "leaves":
        os._exit(3)
    return f"{what} {os.environ.get('OMP_NUM_THREADS', torch.get_num_threads())}"


@pytest.mark.long
def test_ends_of_every_kind(quick_workers: None) -> None:
    began = time.monotonic()
    found = launch_many(_work, [("killed",), ("fine",), ("leaves",), ("well",)], ["cpu"] * 2, backend="gloo")
    assert time.monotonic() - began < 120
    assert [outcome.value and outcome.value[:4] for outcome in found] == [None, "fine", None, "well"]
    assert "run 1 on cpu was killed by SIGKILL; out of memory?" in str(found[0].error)
    assert "run 3 on cpu left early with exit code 3" in str(found[2].error)
