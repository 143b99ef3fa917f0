"""Secure aggregation for an asynchronous server: one masked upload, and a helper.

A client adds a mask, which a fresh seed determines, to its upload and seals the seed for a helper.
The server collects masked uploads. The helper gives the server only the weighted sum of the masks
of one aggregation. The server sees masked uploads only, and the helper sees none. A client answers
an order with one reply, so no client waits for another.

All primitives are those of the package `cryptography`: HPKE (RFC 9180) with X25519, HKDF-SHA256 and
AES-256-GCM, AES-256 in counter mode, and ECDSA with SHA-384 on P-384.
"""
