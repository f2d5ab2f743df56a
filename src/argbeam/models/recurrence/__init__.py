"""Recurrent layers and attention with gradients written out: plain torch, and Triton kernels beside it.

Read `steps` (equations, one step) and `passes` (many steps, with gradient) first.
"""
