from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.helpers import MODELS, atc


@pytest.fixture(scope="session")
def convert(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`convert(name, *options)`: an OM of one of our small models, made once a set of options."""
    made: dict[tuple[str, ...], Path] = {}

    def get(name: str, *options: str) -> Path:
        if (name, *options) not in made:
            path = tmp_path_factory.mktemp("om") / f"{name}.om"
            result: Result = atc("convert", MODELS / f"{name}.onnx", "-o", path, *options)
            assert result.exit_code == 0, result.output
            made[(name, *options)] = path
        return made[(name, *options)]

    return get


@pytest.fixture
def om(convert: Callable[..., Path]) -> Path:
    """A static OM of the small CNN."""
    return convert("small_cnn", "--input-shape", "x:1,3,32,32")


@pytest.fixture
def template(convert: Callable[..., Path]) -> Path:
    """An OM of the small CNN with a symbolic batch."""
    return convert("small_cnn")
