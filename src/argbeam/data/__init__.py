"""From files to batches: vocabulary, tokenizers, readers, examples, batches, the generated corpus.

Read `vocabulary` and `batches` first. `readers/` holds one file format a module; `generated/` makes the demo's corpus.
No task and no model belongs here: a reader gives sentences or trees, a batch gives token ids.
"""
