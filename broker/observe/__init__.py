"""What an operator sees: metrics, health, conditions, the cluster's state.

Hot paths count in plain attributes. `metrics/exposition.py` names them when /metrics is asked. `conditions.py` (pure)
says what is wrong and what to do, for `tier status` and docs/operations.md. `cluster_findings.py` (pure) does so for
the cluster.
"""
