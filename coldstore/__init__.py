"""The bucket: keys, object stores, roots, manifests, segment objects.

`roots` replaces small objects by compare-and-set. `manifest` has a partition's list of segments. `segments` has the
objects with records. `stores` has the object stores: a directory and S3. `inspection` audits a bucket without a broker.
"""
