"""Recurrent layers and attention with gradients written out: plain torch, and Triton kernels beside it.

Read `decoder_pass` and `plain_steps` first.
"""
