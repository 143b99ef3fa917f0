"""Podman, with a storage and settings of its own: images and containers of others are not touched.

It asks for no limits above those of this process, and for no service manager on this machine.
"""
