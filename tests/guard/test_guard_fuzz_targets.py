"""Targets of the fuzzer (``fuzzing.py``): seeds are read, damage raises a clear error, what was found stays fixed."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable

import numpy as np
import pytest
from anndata import AnnData
from fuzz_targets import Target, targets
from mutating import mutate

TABLES = "screen/toy/screen.json"


@pytest.fixture(scope="module")
def made(toy_template: AnnData, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return targets(tmp_path_factory.mktemp("targets"), toy_template)


def test_seeds_are_read_and_damage_is_refused_in_words(made):
    assert len(made) > 40
    draw, wrong = random.Random(5), {}
    for name, target in made.items():
        seed = target.seed()
        for content in [seed, *(mutate(seed, draw)[1] for _ in range(4))]:
            found = target.finding(content)
            if found is not None:
                wrong[name] = found
        target.file.write_bytes(seed)
    assert wrong == {}


def changed(content: bytes, **values: object) -> bytes:
    """Settings of a saved model with other values."""
    plain = json.loads(content)
    plain["model"] |= values
    return json.dumps(plain).encode()


def of_no_arrays(_: bytes) -> bytes:
    file = io.BytesIO()
    np.savez(file, other=np.arange(3))
    return file.getvalue()


def without(name: str) -> Callable[[bytes], bytes]:
    return lambda seed: json.dumps({k: v for k, v in json.loads(seed).items() if k != name}).encode()


def with_first(name: str, value: object) -> Callable[[bytes], bytes]:
    return lambda seed: json.dumps(json.loads(seed) | {name: [value, *json.loads(seed)[name][1:]]}).encode()


def of_an_entry_without_a_name(_: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("perturb_processed.h5ad", b"x")
        archive.writestr(zipfile.ZipInfo(""), b"x")
    return file.getvalue()


FOUND: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "a model's setting of no name": ("model/config.json", lambda seed: changed(seed, direction="smo?th")),
    "a model's number": ("model/config.json", lambda seed: changed(seed, coexpress_threshold=1.4)),
    "a model's graphs": ("model/graphs.npz", of_no_arrays),
    "a screen without conditions": (TABLES, without("conditions")),
    "a screen without names": (TABLES, without("condition_names")),
    "a screen with a condition beyond": (TABLES, with_first("label_condition", 99)),
    "a screen with no condition": (TABLES, with_first("conditions", None)),
    "a screen with a number for a name": (TABLES, with_first("labels", 3)),
    "an entry without a name": ("archives/screen.zip", of_an_entry_without_a_name),
    "terms that are text": ("annotations/a.json", lambda seed: seed.replace(b'["T0"]', b'"[1] T"')),
    "an annotation of no arrays": ("annotations/a.npz", of_no_arrays),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_the_fuzzer_found(what, made):
    name, change = FOUND[what]
    target = made[name]
    seed = target.seed()
    try:
        assert change(seed) != seed
        assert target.finding(change(seed)) is None
    finally:
        target.file.write_bytes(seed)
