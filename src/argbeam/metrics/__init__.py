"""Metrics: counts first, then scores, each with a signature.

Read `bleu` and `significance` first. `device_bleu` is the sentence BLEU of costs and risks, computed for a whole batch
on the device. Metrics take strings, counts or token ids; they know of no task and no run.
"""
