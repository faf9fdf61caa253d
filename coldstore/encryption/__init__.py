"""Encryption of the bucket's objects (docs/formats/encryption.md, ADR 35).

`envelope` is the format: chunks that are authenticated one by one, and a trailer with the object's wrapped key.
`keys` are the key-encryption keys, `key_file` their file, `kms` a service that keeps them wrapped.
`encrypted_store` encrypts and decrypts between an `ObjectStore` and its users. `rewrap` brings objects under a new key.
"""
