"""ATC's fusion switch files: which passes and rules are off.

    SoftmaxFusionPass:off                                  lines, or JSON:
    TbeMatmulElemwiseFusionPass:off                        {"Switch": {"GraphFusion": {"ALL": "off", "cse": "on"},
                                                                       "UBFusion": {"MatmulElemwise…": "off"}}}

    off: gates, conv_epilogue                              off: all passes over the graph but cse, and conv_epilogue

Names are ours, or ATC's where one of ours does the same. `ALL` in GraphFusion stands for the passes of the canonical
graph that are not needed to run it, `ALL` in UBFusion for all rules of fusion; names beside it overrule it. Names that
nobody knows have no effect, and the conversion warns of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atc_py.errors import AtcError, Problem, error

KNOWN: Mapping[str, tuple[str, ...]] = {
    "ArithmeticOptimizationPass": ("arithmetic",),
    "BatchNormBnInferFusionPass": ("fold_affine",),
    "BatchnormFusionPass": ("fold_affine",),
    "CommonSubexpressionEliminationPass": ("cse",),
    "ConstantFoldingPass": ("fold_constants",),
    "ConvBatchnormFusionPass": ("fold_affine",),
    "ConvScaleFusionPass": ("fold_affine",),
    "HostBNFusionPass": ("fold_affine",),
    "ConvConcatFusionPass": ("parts",),
    "ConcatFusionPass": ("parts",),
    "SplitFusionPass": ("parts",),
    "PadConv2dFusionPass": ("parts",),
    "CastRemoveFusionPass": ("casts",),
    "IdentityRemovePass": ("identity",),
    "ReshapeTransposeFusionPass": ("axes",),
    "TransposeReshapeFusionPass": ("axes",),
    "TransposedUpdateFusionPass": ("transposes",),
    "RemoveTransposePass": ("transposes",),
    "SoftmaxFusionPass": ("gates",),
    "L2NormalizeFusionPass": ("gates",),
    "LayerNormFusionPass": ("norms",),
    "LayerNormONNXFusionPass": ("norms",),
    "RmsNormFusionPass": ("norms",),
    "GroupNormFusionPass": ("norms",),
    "InstanceNormFusionPass": ("norms",),
    "GeluFusionPass": ("activations",),
    "GeluONNXFusionPass": ("activations",),
    "HardSwishFusionPass": ("activations",),
    "MishFusionPass": ("activations",),
    "SwishFusionPass": ("activations",),
    "RotaryPositionEmbeddingFusionPass": ("rotary",),
    "FlashAttentionFusionPass": ("attention", "flash_attention"),
    "AttentionQKVFusionPass": ("attention", "horizontal"),
    "AddLayerNormFusionPass": ("residual_norm",),
    "AddRmsNormFusionPass": ("residual_norm",),
    "EmbeddingFusionPass": ("embedding",),
    "TbeConv2DAddReluFusionPass": ("conv_epilogue",),
    "TbeConvCommonRules0FusionPass": ("conv_epilogue",),
    "TbeConvRequantFusionPass": ("conv_epilogue",),
    "TbeConvDequantVaddReluFusionPass": ("conv_epilogue",),
    "TbeMatmulElemwiseFusionPass": ("conv_epilogue",),
    "TbeBatchMatmulElementWiseFusionPass": ("conv_epilogue",),
    "MatMulBiasAddFusionPass": ("conv_epilogue",),
    "TbeEltwiseFusionPass": ("vector_chain",),
    "TbeCommonRules2FusionPass": ("vector_chain",),
    "TbeReduceElemwiseFusionPass": ("vector_chain",),
    "TbePoolingQuantFusionPass": ("pooling",),
}
"""ATC's names → those of ours that do the same."""


@dataclass(frozen=True)
class Switches:
    """What a file turns off, and the names in it that nobody knows."""

    off: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()

    def warnings(self, place: str) -> tuple[Problem, ...]:
        """A warning that lists the unknown names."""
        if not self.unknown:
            return ()
        cause = f"no pass or rule of these names: {', '.join(self.unknown)}"
        return (Problem("W20051", place, cause, "'atc explain' shows the names of passes and rules"),)


def read_switches(path: str | os.PathLike[str], passes: Sequence[str], rules: Sequence[str]) -> Switches:
    """The switches of a file. `passes` are those that may be off, `rules` those of fusion.

    Raises `AtcError` E20051 when it cannot be read or has neither form.
    """
    place = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise _wrong(place, f"it cannot be read: {problem}") from problem
    entries = list(_json(place, text) if text.lstrip().startswith("{") else _lines(place, text))
    state: dict[str, bool] = {}
    unknown: list[str] = []
    for section, name, on in sorted(entries, key=lambda e: e[1] != "ALL"):
        if name == "ALL":
            names: Sequence[str] = rules if section == "UBFusion" else passes if section else [*passes, *rules]
        elif name in passes or name in rules:
            names = (name,)
        else:
            names = KNOWN.get(name, ())
            unknown += [] if names else [name]
        state.update(dict.fromkeys(names, on))
    return Switches(frozenset(n for n, on in state.items() if not on), tuple(dict.fromkeys(unknown)))


def _lines(place: str, text: str) -> Iterator[tuple[str, str, bool]]:
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            name, colon, value = stripped.partition(":")
            if not colon:
                raise _wrong(f"{place}, line {number}", f"expected NAME:on or NAME:off, found '{stripped}'")
            yield "", name.strip(), _on(f"{place}, line {number}", value.strip())


def _json(place: str, text: str) -> Iterator[tuple[str, str, bool]]:
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as problem:
        raise _wrong(place, f"this is no JSON: {problem}") from problem
    switch = tree.get("Switch")
    if not isinstance(switch, dict):
        raise _wrong(place, "it has no object 'Switch'")
    for section, names in switch.items():
        if section not in ("GraphFusion", "UBFusion") or not isinstance(names, dict):
            raise _wrong(place, f"expected the objects GraphFusion and UBFusion in 'Switch', found '{section}'")
        for name, value in names.items():
            yield section, name, _on(f"{place}, {section}", value)


def _on(place: str, value: object) -> bool:
    if value not in ("on", "off"):
        raise _wrong(place, f"expected on or off, found {value!r}")
    return value == "on"


def _wrong(place: str, cause: str) -> AtcError:
    return error(
        "E20051", place, cause, 'lines NAME:off, or {"Switch": {"GraphFusion": {NAME: "off"}, "UBFusion": {}}}'
    )
