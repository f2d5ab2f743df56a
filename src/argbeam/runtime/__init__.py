"""The machine: device, process group, CUDA graphs, Triton, signals.

Read `device` and `group` first. Nothing here knows of models, data or training: a room that needs the machine imports
it from here.
"""
