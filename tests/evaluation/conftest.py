"""A small stand-in for a prepared screen: only what evaluation reads of one."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from gears.conditions import Condition
from gears.data import PreparedScreen
from gears.data.screen._statistics import ConditionStatistics, DERanking
from gears.graphs import GeneAnnotation, GeneEmbedding


class FakeCells:
    """Ten control cells of G genes, drawn once."""

    def __init__(self, n_genes: int) -> None:
        self.shape = (10, n_genes)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        return np.random.default_rng(3).uniform(0, 2, self.shape).astype(np.float32)[ids]


@dataclass(eq=False)
class FakeScreen:
    gene_names: list[str]
    conditions: tuple[Condition, ...]
    statistics: ConditionStatistics
    de: DERanking | None = None
    control_id: int = 0

    def id_of(self, condition: Condition | str) -> int:
        return self.conditions.index(Condition.of(condition))

    context = kind = suffix = ""
    nonnegative = True
    control_ids = np.array([0])
    ranked_genes = PreparedScreen.ranked_genes
    unmeasured = PreparedScreen.unmeasured
    has_cells = True
    control_sample = PreparedScreen.control_sample

    @property
    def control_of(self) -> np.ndarray:
        return np.zeros(len(self.conditions), dtype=np.int64)

    @property
    def cells(self) -> FakeCells:
        return FakeCells(len(self.gene_names))

    def cells_of(self, condition_id: int) -> np.ndarray:
        return np.arange(10)

    @property
    def settings(self):
        return (self,)

    def setting(self, context, kind):
        return self


@dataclass
class FakeSplit:
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def conditions(self, part: str) -> list[Condition]:
        return list(dict.fromkeys(Condition.parse(label) for label in self.parts[part]))


def build_screen(means: dict[str, np.ndarray], *, n=None, m2=None, genes=None, order=None) -> FakeScreen:
    """A screen from condition means by label; the control comes first."""
    conditions = tuple(Condition.parse(label) for label in means)
    mean = np.array(list(means.values()), dtype=np.float64)
    unused = np.zeros_like(mean)
    statistics = ConditionStatistics(
        np.full(len(mean), 10.0) if n is None else np.asarray(n, dtype=np.float64),
        mean,
        np.ones_like(mean) if m2 is None else np.asarray(m2, dtype=np.float64),
        *[unused] * 5,  # m3, m4, nonzero, above, below
        control_of=np.zeros(len(mean), dtype=np.int64),
    )
    genes = genes or [f"G{gene}" for gene in range(mean.shape[1])]
    ranking = None if order is None else DERanking(np.asarray(order), np.zeros(np.shape(order)), mean.shape[1])
    return FakeScreen(list(genes), conditions, statistics, ranking)


@pytest.fixture
def make_screen():
    """:func:`build_screen`, for tests that need their own means."""
    return build_screen


@pytest.fixture
def make_split():
    """A split from its parts."""
    return FakeSplit


def build_additive_screen() -> tuple[FakeScreen, FakeSplit]:
    """Five singles and three pairs whose true means are exactly additive; pairs and E are held out."""
    rng = np.random.default_rng(7)
    control = rng.uniform(2, 3, 12)
    delta = {gene: rng.normal(0, 0.3, 12) for gene in "ABCDE"}
    means = {"ctrl": control}
    means |= {f"{gene}+ctrl": control + change for gene, change in delta.items()}
    means |= {f"{a}+{b}": control + delta[a] + delta[b] for a, b in ("AB", "CD", "AE")}
    order = np.argsort(-np.abs(np.array(list(means.values())) - control), axis=1, kind="stable")
    order[0] = -1
    screen = build_screen(means, order=order, n=[40, 5, 10, 20, 5, 10, 8, 8, 8])
    train = ("ctrl", "A+ctrl", "ctrl+B", "C+ctrl", "D+ctrl", "B+ctrl")
    return screen, FakeSplit({"train": train, "val": (), "test": ("E+ctrl", "A+B", "C+D", "A+E")})


@pytest.fixture
def additive_screen():
    """:func:`build_additive_screen`, new for each test."""
    return build_additive_screen()


@pytest.fixture(scope="session")
def make_additive_screen():
    return build_additive_screen


@pytest.fixture(scope="session")
def letters_go():
    """Invented GO terms of the genes A to E of the additive screen."""
    terms = {"A": "tu", "B": "tv", "C": "uv", "D": "tuv", "E": "uw"}
    return GeneAnnotation.from_dict({gene: set(letters) for gene, letters in terms.items()})


@pytest.fixture(scope="session")
def letters_embedding():
    """Invented embeddings of the genes A to E of the additive screen."""
    return GeneEmbedding(tuple("ABCDE"), np.random.default_rng(2).normal(size=(5, 3)))
