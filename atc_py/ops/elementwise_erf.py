"""The error function over arrays.

For float32, erf is a hyperbolic tangent of a bent argument:

    erf(x) = tanh(u(x)),   u(x) = x * G(x*x),   G(z) = artanh(erf(sqrt z)) / sqrt z,   G(0) = 2 / sqrt(pi)
    erf(1) : G(1) = 1.2304, u = 1.2304, tanh(u) = 0.8427

G is smooth. It is approximated by a quotient of two cubics, fitted by least squares with Lawson's weights (C. L.
Lawson, 1961) to the smallest relative error of erf over |x| <= 4.2 (3.4e-9, below float32's rounding); beyond, erf is
1 to float32. The same u gives GELU with a good relative error in its tail, for

    Phi(x) = (1 + erf(x / sqrt 2)) / 2 = 1 / (1 + exp(-2 u(x / sqrt 2)))
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from atc_py.ops.base import Array

_P = (3472.747638326572, 861.1453029197079, 131.2508058560536, 6.703967774999465)
_Q = (3077.642452162954, 482.8591943794496, 72.90908664473514)  # and z**3
_END = 17.64  # 4.2 squared: the end of the fit

STEPS = 16
"""Vector operations for one element of u; tanh or exp come on top."""

_scalar_erf: Any = np.frompyfunc(math.erf, 1, 1)


def bent(x: Array, u: Array, z: Array, q: Array) -> None:
    """u = x * G(x * x) for float32 arrays; z and q are temporaries; x and u must be two arrays."""
    np.multiply(x, x, out=z)
    np.minimum(z, _END, out=z)
    np.multiply(z, _P[3], out=u)
    np.add(z, _Q[2], out=q)
    for p, r in zip(_P[2::-1], (*_Q[1::-1], None)):
        np.add(u, p, out=u)
        if r is not None:
            np.multiply(u, z, out=u)
            np.multiply(q, z, out=q)
            np.add(q, r, out=q)
    np.divide(u, q, out=u)
    np.multiply(u, x, out=u)


def erf32(x: Array, y: Array, u: Array, z: Array, q: Array) -> None:
    """y = erf(x) for float32, absolute error below 1.5e-7; u, z and q are temporaries."""
    bent(x, u, z, q)
    np.tanh(u, out=y)


def erf64(x: Array, y: Array) -> None:
    """y = erf(x) for float64, correct to the last bits: the C library's function, element by element."""
    y[...] = _scalar_erf(x).astype(np.float64)
