"""What users of Ascend's ATC bring along: options that `atc convert` does not have, and other names of values.

`atc --model=m.onnx --output=m --input_shape_range=x:[1~8]` ends with E10001 and the hint to use --input-shape.
"""

from __future__ import annotations

from collections.abc import Mapping

_SIZES = 'give dims that vary as -1 or low~high: --input-shape "x:-1,3,224,224"; the OM then takes any such size'
_DTYPES = "inputs and outputs keep the model's dtypes; add a Cast to the ONNX model"
_TUNING = "leave it out: it steers Ascend's own kernel compiler"
_ONNX = "leave it out: only ONNX models are read, and they carry it"

INSTEAD: Mapping[str, str] = {
    "input-shape-range": _SIZES,
    "input-fp16-nodes": _DTYPES,
    "output-type": _DTYPES,
    "insert-op-conf": "AIPP is not there: preprocess the inputs, or make it a part of the ONNX model",
    "disable-reuse-memory": "leave it out: the plan is proved; 'atc inspect --memory' shows what shares memory",
    "mode": "'atc inspect' shows a model or OM, 'atc inspect --json' as JSON",
    "om": "'atc inspect MODEL.om --json' shows an OM as JSON",
    "weight": _ONNX,
    "domi": _ONNX,
    "singleop": "make it an ONNX model of one node",
    "op-name-map": _ONNX,
    "auto-tune-mode": _TUNING,
    "aicore-num": _TUNING,
    "core-type": _TUNING,
    "buffer-optimize": _TUNING,
    "op-select-implmode": _TUNING,
    "optypelist-for-implmode": _TUNING,
    "op-precision-mode": _TUNING,
    "op-compiler-cache-dir": _TUNING,
    "op-compiler-cache-mode": _TUNING,
    "op-debug-level": _TUNING,
    "debug-dir": _TUNING,
    "enable-small-channel": _TUNING,
    "enable-single-stream": "--single-stream puts all tasks on one stream",
    "virtual-type": "leave it out: there is no device that could be shared",
}
"""Option (hyphens, without the leading ones) → hint."""

PRECISION_MODES: Mapping[str, str] = {
    "must_keep_origin_dtype": "origin",
    "force_fp16": "fp16",
    "force_fp32": "fp32",
    "allow_fp32_to_fp16": "cube_fp16in_fp32out",
    "allow_mix_precision": "mixed_float16",
    "allow_mix_precision_fp16": "mixed_float16",
    "allow_mix_precision_bf16": "mixed_bfloat16",
}
"""ATC's older names of precision modes → the names of `--precision-mode`.

allow_fp32_to_fp16 keeps float32 where the unit has it; the vector unit has it, the cube has not.
"""
