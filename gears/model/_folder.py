"""Write and read saved models: folders that can be loaded without the training data."""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gears.conditions import Condition
from gears.core._installation import __version__
from gears.core._messages import shorten
from gears.data.screen._contexts import ModelContexts
from gears.data.screen._spelling import Spelling
from gears.data.splits._split import Split, perturbed_in
from gears.files._atomic import new_folder
from gears.files._paths import check_folder, link_target, user_path
from gears.files.formats import (
    MANIFEST,
    FolderFormat,
    check_file,
    checksums_of,
    content_hash,
    read_json,
    read_npz,
    read_tensors,
    write_json,
    write_npz,
    write_tensors,
)
from gears.graphs._custom import GraphMaker, Graphs, coexpression_graph_of, go_graph_of
from gears.graphs._graph import Graph
from gears.graphs._similarities import PriorInputs
from gears.model.config import CustomGraphs, ModelConfig
from gears.model.network import GEARSNetwork, begin_at_zero, start_from
from gears.priors._prior import GenePrior

if TYPE_CHECKING:
    from gears.pertdata import PertData

MODEL = FolderFormat(
    "gears model", 2, "saved model", "give the folder that save_model wrote", "train and save the model again"
)
WEIGHTS = "model.pt"
PRIOR = "prior.npz"
CONTEXTS = "contexts.json"
CHECKPOINTS = "checkpoints"
CARD = "README.md"
MODEL_FILES = frozenset(
    {
        MANIFEST, WEIGHTS, PRIOR, CONTEXTS, CARD, "config.json", "genes.json", "graphs.npz", "statistics.npz",
        "split.json",
    }
)  # fmt: skip
"""Files of a model; all others in its folder belong to a run."""

# parameters that the published network holds and never uses
UNUSED_PREFIXES = ("pert_w.", "bn_pert_base_trans.")
WRAPPER_PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile


@dataclass(frozen=True)
class ModelParts:
    """Everything of a model except its weights."""

    config: ModelConfig
    # gene_names, gene_ids: names and ids of the G measured genes in the order of the predictions
    gene_names: tuple[str, ...]
    gene_ids: tuple[str, ...]
    pert_names: tuple[str, ...]  # the P nodes of the perturbation graph
    graphs: Graphs = dataclasses.field(repr=False)
    """Those over `pert_names` and `gene_names`, made when they are read: :attr:`go` and :attr:`coexpress`."""
    control_mean_G: np.ndarray
    split: Split | None = None  # the split that the model was trained on, if any
    fitted_parts: tuple[str, ...] = ("train",)
    """Parts of the split that the predictions are fitted to: training, and validation after a refit; none before."""
    prior: GenePrior | None = None  # the prior that the network's change is added to, if any
    contexts: ModelContexts | None = None  # contexts and types of perturbation, if the model has any
    nonnegative: bool = True
    """Whether the screen has no value below 0: predictions below 0 are then set to 0 by default."""
    inputs: PriorInputs = dataclasses.field(default_factory=PriorInputs)
    """Tables that the prior reads beside the screen, and the perturbation embedding starts from; not saved."""
    spelling: Spelling = dataclasses.field(default_factory=Spelling)
    """How the screen's own labels were written: predictions understand them, too."""
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Name and content hash of the screen, training options, versions."""

    def __str__(self) -> str:
        predicting = "network alone" if self.fitted_parts else "not trained"
        if self.prior is not None:
            weight = self.prior.network_weight
            predicting = f"prior + {weight:g} x network" if weight else "prior alone"
        return f"{predicting}, {len(self.pert_names)} genes to perturb, {len(self.gene_names)} genes predicted"

    @property
    def go(self) -> Graph:
        """Graph over the nodes of perturbations."""
        return self.graphs.go

    @property
    def coexpress(self) -> Graph:
        """Graph over the measured genes."""
        return self.graphs.coexpress

    @property
    def uses_network(self) -> bool:
        """Whether predictions depend on the network: it has a weight, predicts a variance, or there is no prior."""
        return self.prior is None or self.prior.network_weight > 0 or self.config.uncertainty

    def network(self, *, seed: int = 0) -> GEARSNetwork:
        """A new network with initial weights from `seed`; beside a prior it begins without any change."""
        network = GEARSNetwork(
            self.go,
            self.coexpress,
            self.config,
            seed=seed,
            n_contexts=1 if self.contexts is None else max(1, len(self.contexts.contexts)),
            kinds=() if self.contexts is None else self.contexts.kinds,
        )
        if self.inputs.start_PH is not None:
            start_from(network, self.inputs.start_PH)
        network.fallback.set(self.go.edge_index, len(self.pert_names), self.trained_nodes())
        if self.contexts is not None and self.contexts.contexts:
            network.placing.trained_on(
                {self.contexts.numbers(condition)[0] for condition in self.training_conditions()}
            )
        if self.prior is not None:
            begin_at_zero(network)
            network.prior = self.prior
        return network

    def fitted_conditions(self) -> list[Condition]:
        """Perturbed conditions that predictions are fitted to, before training will be; none with an unknown split."""
        parts = self.fitted_parts or ("train",)
        return list(dict.fromkeys(condition for part in parts for condition in perturbed_in(self.split, part)))

    def training_conditions(self) -> list[Condition]:
        """Training conditions; none where the split is unknown or trains nothing."""
        if self.split is None or "train" not in self.split.parts:
            return []
        return self.split.conditions("train")

    def trained_nodes(self) -> list[int]:
        """Perturbation nodes that a training condition perturbs."""
        genes = {gene for condition in self.training_conditions() for gene in condition.genes}
        return [node for node, name in enumerate(self.pert_names) if name in genes]

    def write(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """Write all files of a model into an existing (temporary) folder."""
        report = None if self.prior is None else dict(self.prior.report)
        options = {"model": self.config.to_dict(), "prior": report, "fitted_parts": list(self.fitted_parts)}
        write_json(folder / "config.json", {**options, "nonnegative": self.nonnegative})
        if self.prior is not None:
            write_npz(folder / PRIOR, self.prior.arrays())
        names = {"gene_names": self.gene_names, "gene_ids": self.gene_ids, "pert_names": self.pert_names}
        write_json(folder / "genes.json", {key: list(value) for key, value in names.items()})
        write_npz(folder / "graphs.npz", {**self.go.arrays("go"), **self.coexpress.arrays("coexpress")})
        means = {"control_mean": self.control_mean_G}
        if self.contexts is not None:
            write_json(folder / CONTEXTS, self.contexts.to_dict())
            means["control_mean_by_context"] = self.contexts.control_mean_KG
            if self.contexts.is_measured_KG is not None:
                means["measured_by_context"] = self.contexts.is_measured_KG
        write_npz(folder / "statistics.npz", means)
        if self.split is not None:
            self.split.save(folder / "split.json")
        write_tensors(folder / WEIGHTS, dict(weights))
        names_written = [file.name for file in folder.iterdir() if file.name != WEIGHTS]
        packages = {name: metadata.version(name) for name in ("torch", "numpy", "anndata")}
        manifest = {
            "genes_hash": content_hash(list(self.gene_names)),
            "n_genes": len(self.gene_names),
            "n_perts": len(self.pert_names),
            "spelling": self.spelling.to_dict(),
            "provenance": dict(self.provenance),
            "versions": {"gears": __version__, "python": platform.python_version()} | packages,
            "checksums": checksums_of(folder, names_written),
        }
        MODEL.write(folder, manifest)


def difference(first: tuple[str, ...], second: tuple[str, ...]) -> str:
    """Message that says how two lists of names differ."""
    only_first = sorted(set(first) - set(second))
    only_second = sorted(set(second) - set(first))
    if not only_first and not only_second and len(first) == len(second):
        position = next(i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
        names = f"{first[position]} and {second[position]}"
        return f"the same {len(first)} names in another order (position {position}: {names})"
    differences = [f"{len(first)} there, {len(second)} here"]
    if only_first:
        differences.append(f"only there: {shorten(only_first, 5)}")
    if only_second:
        differences.append(f"only here: {shorten(only_second, 5)}")
    return "; ".join(differences)


def save_model(
    path: str | Path, parts: ModelParts, weights: Mapping[str, torch.Tensor], *, run: Path | None = None
) -> None:
    """Write a complete model folder and swap it in; a model of the same screen is replaced.

    `run` is the folder in which a run trained it: its history, checkpoints and logs are kept beside the model. Raises
    FileExistsError if `path` holds a model of another screen, or something else.
    """
    path = user_path(path)
    check_replaceable(path, parts)
    with new_folder(path) as folder:
        parts.write(folder, weights)
        if run is not None and run.is_dir():
            _keep_files(run, folder)


def _keep_files(old: Path, new: Path) -> None:
    """Copy the files of `old` that are no part of a model into `new`, as hard links where possible."""
    for file in old.rglob("*"):
        relative = file.relative_to(old)
        if str(relative) in MODEL_FILES or not file.is_file():
            continue
        (new / relative).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, new / relative)
        except OSError:
            shutil.copy2(file, new / relative)


def check_save_path(path: str | Path, parts: ModelParts | None = None) -> Path:
    """Check that a model can be written to a folder, without creating anything; FileExistsError or OSError."""
    path = link_target(check_folder(path, "save_path"))
    check_replaceable(path, parts)
    return path


def check_replaceable(path: Path, parts: ModelParts | None = None) -> None:
    """Raise unless `path` does not exist, is empty, or is a model (with `parts`: of the same screen)."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not is_model(path):
        msg = f"{path} exists and is no saved model (it has no {MANIFEST} of one); choose another save_path"
        raise FileExistsError(msg)
    if parts is None:
        return
    there, here = read_json(path / MANIFEST).get("provenance", {}), parts.provenance
    if there.get("screen_hash") != here.get("screen_hash"):
        msg = (
            f"{path} holds a model of another screen ({_screen_name(there)}; this one is {_screen_name(here)}); "
            "choose another save_path, or delete that folder first"
        )
        raise FileExistsError(msg)


def _screen_name(provenance: Mapping[str, Any]) -> str:
    return f"{provenance.get('dataset', 'unknown')!r} {str(provenance.get('screen_hash', ''))[:8]}".rstrip()


def is_model(path: str | Path) -> bool:
    """Whether a folder is a saved model, by its manifest."""
    return MODEL.marks(path)


def load_parts(path: str | Path) -> ModelParts:
    """Everything but the weights of a saved model; FileNotFoundError or ValueError for none, or a damaged one."""
    path = user_path(path)
    manifest = MODEL.read(path, {"genes_hash": str})
    try:
        for name in manifest.get("checksums", {}):
            check_file(path, str(name), manifest["checksums"], whole=True)
        parts = _read(path, manifest)
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name if error.filename else str(error)
        msg = f"the model {path} is incomplete: {missing} is missing; copy the whole folder, or save it again"
        raise FileNotFoundError(msg) from error
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        if str(path) in str(error):
            raise
        msg = f"the model {path} is damaged or incomplete ({type(error).__name__}: {error})"
        raise ValueError(msg) from error
    if content_hash(list(parts.gene_names)) != manifest["genes_hash"]:
        msg = f"{path / 'genes.json'} does not fit {MANIFEST}: the gene list was changed after saving"
        raise ValueError(msg)
    return parts


def _read(path: Path, manifest: dict[str, Any]) -> ModelParts:
    genes = read_json(path / "genes.json")
    arrays = read_npz(path / "graphs.npz")
    go, coexpress = Graph.from_arrays(arrays, "go"), Graph.from_arrays(arrays, "coexpress")
    means = read_npz(path / "statistics.npz")
    config = read_json(path / "config.json")
    contexts = None
    if "control_mean_by_context" in means:
        tables = means["control_mean_by_context"], means.get("measured_by_context")
        contexts = ModelContexts.from_dict(read_json(path / CONTEXTS), *tables)
    split_file = path / "split.json"
    return ModelParts(
        config=ModelConfig.from_dict(config["model"]),
        gene_names=tuple(genes["gene_names"]),
        gene_ids=tuple(genes["gene_ids"]),
        pert_names=tuple(genes["pert_names"]),
        graphs=Graphs(lambda: go, lambda: coexpress),
        control_mean_G=means["control_mean"],
        split=Split.load(split_file) if split_file.is_file() else None,
        fitted_parts=tuple(config.get("fitted_parts", ("train",))),
        prior=None if config["prior"] is None else GenePrior.from_arrays(read_npz(path / PRIOR), config["prior"]),
        contexts=contexts,
        nonnegative=bool(config.get("nonnegative", True)),
        spelling=Spelling.from_dict(manifest.get("spelling")),
        provenance=manifest.get("provenance", {}),
    )


def load_weights(path: str | Path, network: GEARSNetwork) -> None:
    """Read the weights of a saved model into a network of its shape, in the precision they were saved in."""
    file = user_path(path) / WEIGHTS
    state = published_state(read_tensors(file))
    dtype = next((value.dtype for value in state.values() if value.is_floating_point()), torch.float32)
    network.to(dtype)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        msg = f"{file} does not fit this model: {shorten(lines, 4)}"
        raise ValueError(msg) from error


def published_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of this package's network from a published or a wrapped one.

    Wrapper prefixes are stripped key by key, unused tensors (``pert_w.*``,
    ``bn_pert_base_trans.*``) are dropped by name, everything else is kept. Load the result
    with ``network.load_state_dict(...)``, which names missing and unexpected keys. Raises ValueError if two keys name
    the same parameter once stripped.
    """
    mapped: dict[str, Tensor] = {}
    clashes = []
    for name, tensor in state.items():
        while name.startswith(WRAPPER_PREFIXES):
            name = name.split(".", 1)[1]
        if name.startswith(UNUSED_PREFIXES):
            continue
        if name in mapped:
            clashes.append(name)
        mapped[name] = tensor
    if clashes:
        msg = (
            f"the state dict holds these parameters with and without a wrapper's prefix: {shorten(clashes)}; "
            f"expected each once: remove one of the two (prefixes: {', '.join(WRAPPER_PREFIXES)})"
        )
        raise ValueError(msg)
    return mapped


def build_parts(pert_data: PertData, config: ModelConfig, graphs: CustomGraphs | None = None) -> ModelParts:
    """The model without weights for a prepared screen and its split."""
    graphs = CustomGraphs() if graphs is None else graphs
    screen = pert_data.screen
    genes, nodes = tuple(map(str, screen.gene_names)), tuple(map(str, pert_data.pert_names))
    annotation = pert_data.annotation
    go_maker = GraphMaker(
        nodes, config.num_similar_genes_go_graph, annotation, lambda: go_graph_of(pert_data, config, nodes)
    )
    k = config.num_similar_genes_co_express_graph
    coexpress_maker = GraphMaker(genes, k, annotation, lambda: coexpression_graph_of(pert_data, config))
    return ModelParts(
        config=config,
        gene_names=genes,
        gene_ids=tuple(map(str, screen.gene_ids)),
        pert_names=nodes,
        graphs=Graphs(go_maker.when_read(graphs.go), coexpress_maker.when_read(graphs.coexpress)),
        control_mean_G=screen.control_mean_G,
        contexts=None if screen.model_contexts.is_plain else screen.model_contexts,
        nonnegative=screen.nonnegative,
        split=pert_data.split,
        fitted_parts=(),
        inputs=PriorInputs.of(pert_data, config.hidden_size, graphs.pert_embedding),
        spelling=screen.spelling,
        provenance={"dataset": pert_data.dataset_name, "screen_hash": screen.content_hash, "scale": screen.scale},
    )


def check_names(kind: str, model: tuple[str, ...], data: tuple[str, ...], path: str | Path) -> None:
    """Raise unless a model's names are those of the data, in the same order."""
    if tuple(map(str, model)) != tuple(map(str, data)):
        msg = f"the model {path} has other {kind} than this PertData: {difference(model, data)} ('here': the PertData)"
        raise ValueError(msg)


def check_scale(parts: ModelParts, scale: str | None, path: str | Path) -> None:
    """Raise unless a model was trained on values of the data's `scale`; None where one of them is not known."""
    trained = parts.provenance.get("scale")
    if None not in (trained, scale) and trained != scale:
        msg = (
            f"the model {path} was trained on values of the scale {trained!r}, and this PertData holds {scale!r}: "
            f"bring the screen to {trained!r} (scale={trained!r} where its detection is wrong)"
        )
        raise ValueError(msg)
