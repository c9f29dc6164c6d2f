"""What kind of work an operator is, as fusion sees it: rules are written for kinds of operators and name few of them.

    InstanceNormalization    CHANNEL_NORM     one scale and shift a channel, of statistics taken over its pixels
    LayerNormalization       ROW_NORM         statistics of a row
    ReduceMean               REDUCTION        fewer elements than it reads

The kinds are those that tensor compilers tell apart (TVM's `OpPatternKind`, TBE's `pattern` of a compute: ElemWise,
CommReduce, pooling, quantization), finer where a rule must know what has to lie whole in a buffer. An operator that
maps element to element says so by `Flags.elementwise`.
"""

from __future__ import annotations

import enum


class Pattern(enum.Enum):
    """The kind of an operator that is not elementwise.

    `SCALE`: each channel is scaled and shifted by given numbers. `CHANNEL_NORM`: by statistics of its own pixels.
    `ROW_NORM`: statistics of the last axes. `NORM`: of other parts of the tensor. `REDUCTION`: along axes. `SOFTMAX`:
    along an axis. `POOL`: windows of a map. `GLOBAL_POOL`: all pixels of a map. `MOMENTS`: takes moments block by
    block. `COMBINE`: puts such moments together. `LOOKUP`: picks rows of a table. `PAD`: puts a border around.
    `QUANTIZATION`: to integers with a scale, or back. `QUANTIZED_PRODUCT`: a product of such integers with an epilogue
    of its own. `ROTATION`: turns pairs of elements. `BITS`: the same bytes as another type.
    """

    SCALE = "scale"
    CHANNEL_NORM = "channel norm"
    ROW_NORM = "row norm"
    NORM = "norm"
    REDUCTION = "reduction"
    SOFTMAX = "softmax"
    POOL = "pool"
    GLOBAL_POOL = "global pool"
    MOMENTS = "moments"
    COMBINE = "combine"
    LOOKUP = "lookup"
    PAD = "pad"
    QUANTIZATION = "quantization"
    QUANTIZED_PRODUCT = "quantized product"
    ROTATION = "rotation"
    BITS = "bits"
