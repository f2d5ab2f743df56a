"""Steps and passes of recurrent layers with attention: plain torch, and a Triton kernel beside each part.

Read `steps` (equations, one step) and `passes` (many steps, with gradient) first. Parameters do not go in here.
"""
