"""Keys of attributes: equal for equal content only."""

from __future__ import annotations

import numpy as np

from atc_py.fusion.keys import frozen


class Odd:
    """Something that is no key."""

    __hash__ = None  # type: ignore[assignment]


def test_equal_attributes_have_one_key() -> None:
    a = {"axis": 1, "perm": [0, 2, 1], "deep": {"x": (1, [2.0])}, "w": np.arange(2000)}
    b = {"axis": 1, "perm": [0, 2, 1], "deep": {"x": (1, [2.0])}, "w": np.arange(2000)}
    assert frozen(a) == frozen(b) and hash(frozen(a)) == hash(frozen(b))


def test_arrays_that_print_alike_differ() -> None:
    a, b = np.zeros(2000, np.float32), np.zeros(2000, np.float32)
    b[1000] = 1
    assert repr(a) == repr(b) and frozen({"w": a}) != frozen({"w": b})
    assert frozen(a) != frozen(a.reshape(2, 1000)) and frozen(a) != frozen(a.view(np.int32))
    words = np.array(["a", "b"], object)
    assert frozen(words) == frozen(words.copy()) != frozen(words[::-1])


def test_what_is_no_key_is_known_by_its_identity_and_kept() -> None:
    one = Odd()
    assert frozen([one]) == frozen([one]) != frozen([Odd()])
    keys = {frozen(Odd()) for _ in range(100)}
    assert len(keys) == 100, "a key keeps its object, so no later one has the same identity"
