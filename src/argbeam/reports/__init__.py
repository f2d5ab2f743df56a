"""Output for users: tables, progress, plots, the report page, and the reader of records behind them.

Read `report` and `progress` first. Nothing here computes a score or opens a model.
"""
