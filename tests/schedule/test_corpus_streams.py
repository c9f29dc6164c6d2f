"""Models of the repository on several streams: proved, and the same outputs as on one, in any order and any sink."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from atc_py import Options, Session, compile_model
from atc_py.compiler import prove
from atc_py.emit import om_bytes
from atc_py.runtime.loader import load
from models import catalog

from .branching import shuffled

NAMES = ("yolo_raw", "moe_nonzero", "loop_while_if", "cond_dyn", "unet_convt", "diffusion_unet_ts", "centernet_topk")


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_those_of_one_stream(name: str) -> None:
    path = catalog.MODELS_DIR / f"corpus/{name}.onnx"
    feeds = catalog.make_inputs(catalog.load_manifest()[name], path)
    want = Session(om_bytes(compile_model(path, Options(single_stream=True)))).run(None, feeds)
    loaded = load(om_bytes(compile_model(path)))
    prove(loaded.plan)
    plans = [shuffled(loaded.plan, seed) for seed in range(4)]
    runs = [Session(replace(loaded, plans=(plan,))) for plan in (loaded.plan, *plans)]
    runs.append(Session(om_bytes(compile_model(path, Options(sink="op")))))
    for session in runs:
        for a, b in zip(session.run(None, feeds), want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_some_of_them_use_several_streams() -> None:
    plans = [compile_model(catalog.MODELS_DIR / f"corpus/{name}.onnx").plan for name in NAMES]
    assert sum(plan.streams > 1 for plan in plans) >= 3
    assert all(plan.streams <= 4 for plan in plans)
