"""Planning of a read: from offsets and filters to tasks, on the driver.

`ranges.py` resolves the options' offsets, `filters.py` narrows them, `admission.py` bounds a stream's batch, and
`planner.py` cuts the ranges into tasks. `plan_summary.py` says what a plan reads and prunes.
"""
