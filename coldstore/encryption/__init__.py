"""Encryption of the bucket's objects (docs/formats/encryption.md, ADR 35).

`envelope` is the format: chunks that are authenticated one by one, and a trailer with the object's wrapped key. `keys`
has the key-encryption keys, `key_file` their file, `kms` a key service that wraps them. `encrypted_store` encrypts and
decrypts between an `ObjectStore` and its users. `rewrap` wraps the data keys of objects with a new key.
"""
