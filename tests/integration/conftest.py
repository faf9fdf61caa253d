"""The fixtures of the evidence tests."""

from tests.support.processes.evidence_fixtures import bucket, cluster, directory_site, site, stores, three_brokers

__all__ = ["bucket", "cluster", "directory_site", "site", "stores", "three_brokers"]
