"""The collector of cycles rests while something is compiled, and is then as it was."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from atc_py import AtcError, collector, compile_model
from atc_py.emit import om_bytes

MODEL = Path(__file__).resolve().parent.parent / "models/small_cnn.onnx"


def test_it_is_as_it_was_afterwards() -> None:
    gc.enable()
    with collector.paused():
        assert not gc.isenabled()
        with collector.paused():
            pass
        assert not gc.isenabled(), "the inner one must not wake it"
    assert gc.isenabled()
    gc.disable()
    try:
        with collector.paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_has_been_made_is_not_looked_at_again() -> None:
    gc.collect()
    with collector.paused():
        made = [[i] for i in range(5000)]
    assert gc.get_count()[0] < 1000 and not any(item is made for item in gc.get_objects(0))
    assert any(item is made for item in gc.get_objects(2)), "it counts as old"
    with pytest.raises(ValueError), collector.paused():
        made = [[i] for i in range(5000)]
        raise ValueError
    assert not any(item is made for item in gc.get_objects(2)), "after an error the collector looks"


def test_what_somebody_keeps_from_the_collector_stays_so() -> None:
    gc.freeze()
    try:
        with collector.paused():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_a_conversion_leaves_no_cycles() -> None:
    om = compile_model(MODEL)
    om_bytes(om)
    gc.collect()
    with collector.paused():
        om = compile_model(MODEL)
        om_bytes(om)
        count = len(om.lowered.nodes)
        del om
    assert gc.collect() < count


def test_a_conversion_does_not_collect_and_an_error_leaves_the_collector_on() -> None:
    collections: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(phase)

    gc.callbacks.append(note)
    try:
        with collector.paused():
            om = compile_model(MODEL)
            om_bytes(om)
            assert not collections
    finally:
        gc.callbacks.remove(note)
    with pytest.raises(AtcError):
        compile_model("no such model.onnx")
    assert gc.isenabled()


def test_what_a_conversion_gives_up_is_freed_without_the_collector() -> None:
    compile_model(MODEL)
    gc.collect()
    with collector.paused():
        for _ in range(3):
            om_bytes(compile_model(MODEL))
        before = len(gc.get_objects())
        for _ in range(3):
            om_bytes(compile_model(MODEL))
        grown = len(gc.get_objects()) - before
    one = len(compile_model(MODEL).lowered.nodes)
    assert grown < 3 * 40 * one, f"{grown} objects stay behind, {one} nodes"
