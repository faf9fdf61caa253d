"""`serve --secure`: sets up TLS and SCRAM for a cluster.

`authority.py` is the cluster's certificate authority, `directory.py` has the files of a secured data directory,
`settings.py` derives configs of brokers and clients from them, and `setup.py` is the start.
"""
