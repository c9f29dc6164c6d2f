"""Every node test of onnx through convert, OM bytes, load and run.

Those that do not pass yet are listed in `expected_failures.txt`; one that starts to pass must leave the list.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.onnx_tests import node_tests, run

EXPECTED_FAILURES = frozenset(
    line for line in (Path(__file__).parent / "expected_failures.txt").read_text().splitlines() if line
)


@pytest.mark.parametrize("name", list(node_tests()))
def test_node(name: str, request: pytest.FixtureRequest) -> None:
    if name in EXPECTED_FAILURES:
        request.node.add_marker(pytest.mark.xfail(strict=True, reason="not built yet"))
    run(node_tests()[name])


def test_the_list_names_tests() -> None:
    assert set(node_tests()) >= EXPECTED_FAILURES


def test_most_node_tests_pass() -> None:
    passing = len(node_tests()) - len(EXPECTED_FAILURES)
    assert passing >= 0.6 * len(node_tests()), f"{passing} of {len(node_tests())}"
