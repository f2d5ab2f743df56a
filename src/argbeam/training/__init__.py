"""Training: one step, the optimizer, and the loop that yields events.

Read `loop` and `step` first. The loop knows no loss, task or model by name, writes no file and prints nothing: it
yields events, and `runs` saves them.
"""
