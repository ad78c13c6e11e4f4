"""Network, batch norm over weighted rows and all workers, objectives. Reads and writes no files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gears.core._lazy import lazy_names

if TYPE_CHECKING:
    from gears.model.config import ModelConfig

__all__ = ["ModelConfig"]

_HOMES = {"ModelConfig": "gears.model.config"}
_PUBLISHED = {
    "GEARS_Model": "model.model is the network (gears.model.network.GEARSNetwork), made by model_initialize(...)",
    "MLP": "gears.model.layers.MLP(sizes) has the published layers, with batch norms over weighted rows",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES, _PUBLISHED)
