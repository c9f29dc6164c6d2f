"""What came of onnx's backend tests, by form and category.

Printed at the end of a test run, and by scripts/backend-tests, which also writes docs/backend_tests.md.

As a pytest plugin it reads the names of the tests that ran: `test_plain[node/test_relu]` and
`test_variant[symbolic-node/test_relu]`, and the property `reference` that they record.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

CASE = re.compile(r"tests/backend/\w+\.py::test_(plain|variant)\[(?:(constants|weights|symbolic)-)?(([\w-]+)/.+)\]$")

FORMS = {
    "plain": "as onnx has them",
    "constants": "every input a constant",
    "weights": "every input but the first a constant",
    "symbolic": "every dim above 1 symbolic",
}


@dataclass
class Tally:
    """Counts of tests, and the operators that ran on onnx's reference implementation (in the plain form)."""

    passed: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    reference: Counter[str] = field(default_factory=Counter)
    """Operator → tests that use the reference implementation's kernel of it."""
    on_reference: int = 0
    """Tests that use at least one."""

    def add(self, form: str, category: str, passed: bool, reference: Iterable[str] = ()) -> None:
        """Count one test."""
        (self.passed if passed else self.failed)[form, category] += 1
        operators = list(reference) if form == "plain" else []
        self.reference.update(operators)
        self.on_reference += bool(operators)

    def rows(self) -> Iterator[tuple[str, str, int, int, int]]:
        """Form, category, passed, failed, excluded: in the order of the forms and categories."""
        from tests.backend.onnx_tests import CATEGORIES, EXCLUDED

        excluded = Counter(name.partition("/")[0] for name in EXCLUDED)
        for form in FORMS:
            for category in CATEGORIES:
                key = form, category
                if self.passed[key] or self.failed[key]:
                    yield form, category, self.passed[key], self.failed[key], excluded[category]

    def lines(self) -> list[str]:
        """The counts as text."""
        rows = list(self.rows())
        plain = [r for r in rows if r[0] == "plain"]
        if len(plain) > 1:
            passed, failed, excluded = (sum(numbers) for numbers in zip(*(r[2:] for r in plain), strict=True))
            rows.insert(len(plain), ("plain", "all", passed, failed, excluded))
        found = [f"{'':38}{'':18}{'passed':>8}{'failed':>8}{'excluded':>10}"]
        found += [f"{FORMS[form]:38}{category:18}{p:>8}{f:>8}{x:>10}" for form, category, p, f, x in rows]
        return [*found, self.reference_text()] if plain else found

    def reference_text(self) -> str:
        """How many tests use the reference implementation, and for what."""
        listed = ", ".join(f"{op} {n}" for op, n in sorted(self.reference.items()))
        text = f"{self.on_reference} tests run onnx's reference implementation as AI CPU kernel"
        return f"{text}: {listed}" if listed else text


def page(tally: Tally, version: str, excluded: Sequence[tuple[str, str]]) -> str:
    """docs/backend_tests.md."""
    rows = "\n".join(
        f"| {FORMS[form]} | {category} | {passed + failed + gone} | {passed} | {failed} | {gone} |"
        for form, category, passed, failed, gone in tally.rows()
    )
    named = "\n".join(f"| `{name}` | {why} |" for name, why in excluded)
    operators = "\n".join(f"| {op} | {n} |" for op, n in sorted(tally.reference.items()))
    table = f"\n| operator | tests |\n|---|---|\n{operators}\n" if operators else ""
    return f"""# onnx's backend tests

Each test of onnx {version} is converted, written as the bytes of an OM, loaded and run on the simulated NPU, through
`atc_py.backend`, and its outputs are compared with those that onnx expects, at onnx's tolerances. Written by
`scripts/backend-tests`; `scripts/test` runs the plain form whole and a third of each of the others, `--all` everything.

| form | category | tests | passed | failed | excluded |
|---|---|---|---|---|---|
{rows}

The other forms of the node tests must give the same outputs: with constants everything is folded, without a limit of
size; with symbols the sizes are known only when the model is run.

## Excluded

| test | why |
|---|---|
{named}

## Kernels that are onnx's reference implementation

{tally.on_reference} tests, as onnx has them, run the reference implementation as an AI CPU kernel.
{table}"""


def of_reports(reports: Iterable[Any]) -> Tally:
    """The tally of pytest's reports."""
    tally = Tally()
    for report in reports:
        found = CASE.search(report.nodeid)
        if found is None or (report.when != "call" and not report.failed):
            continue
        recorded = dict(report.user_properties).get("reference", ())
        tally.add(found[2] or "plain", found[4], bool(report.passed), recorded)
    return tally


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the counts, if any of the tests ran."""
    stats = terminalreporter.stats
    tally = of_reports([r for kind in ("passed", "failed", "error") for r in stats.get(kind, ())])
    if any(tally.rows()):
        terminalreporter.section("onnx's backend tests")
        for line in tally.lines():
            terminalreporter.write_line(line)
