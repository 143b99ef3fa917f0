"""Secure aggregation for an asynchronous server: one masked upload, and a helper.

A client adds a mask to its upload, which a fresh seed determines, and seals the seed for a helper.
The server collects masked uploads. The helper tells the server the weighted sum of the masks of
one aggregation, and nothing else. The server never sees an upload, the helper never sees any. A
client answers an order with one reply, so nobody waits for anybody.

All primitives are those of the package `cryptography`: HPKE (RFC 9180) with X25519, HKDF-SHA256 and
AES-256-GCM, AES-256 in counter mode, and ECDSA with SHA-384 on P-384.
"""
