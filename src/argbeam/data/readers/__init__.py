"""Readers of files: text and pairs, treebanks, IWSLT 2014, word vectors. Every error names file and line."""
