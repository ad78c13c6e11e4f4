"""Independent generators for each stage of the simulation, so that options of one stage leave others alone."""

from __future__ import annotations

import numpy as np

_STAGES = ("genes", "conditions", "effects", "interactions", "baseline", "layout", "cells")


def stage_generator(seed: int, stage: str, block: int = 0) -> np.random.Generator:
    """Generator that depends on seed, stage and block only."""
    key = (_STAGES.index(stage), block)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
