"""What a user reads: tables, progress, plots, the report page.

Read `report` and `progress` first. Nothing here computes a score or opens a model: rows and events come in as values.
"""
