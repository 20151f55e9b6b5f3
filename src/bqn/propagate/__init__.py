"""Propagation of beliefs as pure functions: section 4 and appendix C of the paper, corrected.

`sums` decides between `contraction`, `fourier` and `clt`; `threshold` and `pooling` hold the nonlinear layers.
Nothing here owns a parameter.
"""
