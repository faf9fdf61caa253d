"""The bucket: keys, object stores, roots, manifests, segment objects.

`roots` replaces small objects by compare-and-set. `manifest` is a partition's list of segments. `segments` are the
data. `stores` are a directory and S3. `inspection` audits a bucket without a broker.
"""
