"""The fixtures of the evidence tests."""

from tests.support.processes.evidence_fixtures import bucket, directory_site, site, stores

__all__ = ["bucket", "directory_site", "site", "stores"]
