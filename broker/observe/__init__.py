"""Observability: metrics, health, conditions, and the cluster's state, for operators.

Hot paths count in plain attributes. `metrics/exposition.py` names the counters when /metrics is requested.
`conditions.py` (pure) names problems of the broker and their remedies, for `tier status` and docs/operations.md.
`cluster_findings.py` (pure) does this for the problems of the cluster.
"""
