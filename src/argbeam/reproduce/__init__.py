"""The paper's tables reproduced: the runs they need, side by side in processes, their scores, and the report.

Read `experiments` (the tables) and `campaign` (the command) first. `plan` turns tables into runs, `runner` starts them,
`worker` is one such process, `folder` and `results` read what they wrote, `page` makes the tables.
Work on a single run does not belong here: `runs` and `reports` do it.
"""
