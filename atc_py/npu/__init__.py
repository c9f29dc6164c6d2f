"""The simulated NPU: memory spaces, bound tasks, and their execution with the kernels of `ops`."""
