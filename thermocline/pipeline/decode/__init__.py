"""Record batches to Arrow, by numba kernels."""
